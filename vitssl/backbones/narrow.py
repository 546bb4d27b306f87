"""Attention of narrow heads, faster on a CPU: SSAT's decoder has 16 heads of 8 values.

Shapes: M heads of all images, C values of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.models.vision_transformer import Attention
from torch import Tensor

WIDE = 16  # fp32 values in a CPU's widest vector: from there on the fused kernel is as fast
BLOCK = 2**20  # attention weights that are computed at a time: they are still in the cache when the next product reads them
LEAST_HEADS = 8  # at a time, for a CPU's cores to share


class NarrowAttention(Attention):
    """timm's attention; where the fused kernel is slow, on narrow heads in fp32 on a CPU, ``attend`` takes its place."""

    def forward(self, tokens_BND: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        plain = self.head_dim >= WIDE or attn_mask is not None or is_causal or not self.fused_attn or torch.compiler.is_compiling()
        if plain or tokens_BND.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return super().forward(tokens_BND, attn_mask, is_causal)
        B, N, _ = tokens_BND.shape
        qkv = self.qkv(tokens_BND).reshape(B, N, 3, self.num_heads, self.head_dim)
        heads_MCN = attend(qkv.permute(2, 0, 3, 4, 1).reshape(3, B * self.num_heads, self.head_dim, N), self.scale)
        return self.proj(heads_MCN.view(B, self.attn_dim, N).transpose(1, 2))


def attend(qkv_3MCN: Tensor, scale: float) -> Tensor:
    """softmax(scale q k^T) v of every head, (M, C, N).

    With a head's values before its tokens every product runs along the tokens, which are many, and not along the values, which are few.
    The backward pass reads the attention weights that the forward pass kept (4 M N^2 bytes), where the fused kernel recomputes them.
    """
    return _Attend.apply(qkv_3MCN, scale)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_3MCN: Tensor, scale: float) -> Tensor:
        q, k, v = qkv_3MCN
        weights_MNN = q.new_empty(len(q), q.shape[2], q.shape[2]) if ctx.needs_input_grad[0] else None
        heads_MCN = torch.empty_like(v)
        for part in _parts(q):
            weights = q.new_empty(len(q[part]), q.shape[2], q.shape[2]) if weights_MNN is None else weights_MNN[part]
            torch.baddbmm(weights, q[part].mT, k[part], beta=0, alpha=scale, out=weights)
            torch.softmax(weights, dim=-1, out=weights)
            torch.bmm(v[part], weights.mT, out=heads_MCN[part])
        ctx.save_for_backward(qkv_3MCN, weights_MNN)
        ctx.scale = scale
        return heads_MCN

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_MCN: Tensor) -> tuple[Tensor, None]:
        qkv_3MCN, weights_MNN = ctx.saved_tensors
        grads_3MCN = torch.empty_like(qkv_3MCN)
        (q, k, v), (grad_q, grad_k, grad_v) = qkv_3MCN, grads_3MCN
        for part in _parts(q):
            weights, grad = weights_MNN[part], grad_MCN[part]
            torch.bmm(grad, weights, out=grad_v[part])
            grad_weights = grad.mT @ v[part]
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            torch.baddbmm(grad_q[part], k[part], grad_scores.mT, beta=0, alpha=ctx.scale, out=grad_q[part])
            torch.baddbmm(grad_k[part], q[part], grad_scores, beta=0, alpha=ctx.scale, out=grad_k[part])
        return grads_3MCN, None


def _parts(q_MCN: Tensor) -> Iterator[slice]:
    """A few heads at a time."""
    heads = max(LEAST_HEADS, BLOCK // q_MCN.shape[2] ** 2)
    return (slice(first, first + heads) for first in range(0, len(q_MCN), heads))
