"""The two parts of SL-ViT (Lee et al. 2021, "Vision Transformer for Small-Size Datasets"), which give a ViT a locality bias.

Shapes: E values in the patches of a token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention
from torch import Tensor, nn


def with_shifts(images_BCHW: Tensor, by_px: int) -> Tensor:
    """Stack images and their four diagonal shifts by ``by_px`` pixels along the channels, (B, 5 * C, H, W).

    The shifts are down-right, down-left, up-right and up-left, padded with zeros.
    """
    H, W = images_BCHW.shape[-2:]
    padded = F.pad(images_BCHW, (by_px,) * 4)
    moved = [padded[..., row : row + H, column : column + W] for row in (0, 2 * by_px) for column in (0, 2 * by_px)]
    return torch.cat([images_BCHW, *moved], dim=1)


class ShiftedPatches(nn.Module):
    """Shifted patch tokenization (section 3.1): a LayerNorm and a linear layer on patches of the image and of its diagonal shifts.

    Each token sees its patch in the image and in the four diagonal shifts by half a patch, and with them half of each neighbour.
    """

    def __init__(self, patch_size: int, dim: int):
        super().__init__()
        self.patch_size = patch_size
        values = 5 * 3 * patch_size**2
        self.norm = nn.LayerNorm(values, eps=1e-6)
        self.proj = nn.Linear(values, dim)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        patches_BEN = F.unfold(with_shifts(images_BCHW, self.patch_size // 2), self.patch_size, stride=self.patch_size)
        return self.proj(self.norm(patches_BEN.transpose(1, 2)))


class LocalAttention(Attention):
    """Locality self-attention (section 3.2), in which no token attends to itself and every head learns its temperature.

    ``scale`` holds the inverse temperatures, as in the authors' code. They start at timm's constant, head_dim ** -0.5.
    """

    def __init__(self, dim: int, num_heads: int, **options: Any):
        super().__init__(dim, num_heads, **options)
        self.scale = nn.Parameter(torch.full((num_heads,), self.head_dim**-0.5))

    def forward(self, tokens_BND: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        assert attn_mask is None and not is_causal, "the diagonal is the only mask"
        B, N, _ = tokens_BND.shape
        q, k, v = self.qkv(tokens_BND).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q = q * self.scale[:, None, None]
        itself_NN = torch.eye(N, dtype=torch.bool, device=q.device)
        if self.fused_attn:
            heads_BANd = F.scaled_dot_product_attention(q, k, v, attn_mask=~itself_NN, scale=1.0)
        else:
            heads_BANd = self.attn_drop((q @ k.transpose(-2, -1)).masked_fill(itself_NN, -torch.inf).softmax(-1)) @ v
        return self.proj(heads_BANd.transpose(1, 2).reshape(B, N, self.attn_dim))
