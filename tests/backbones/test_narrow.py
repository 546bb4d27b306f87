"""Attention of narrow heads: timm's own, computed otherwise."""

from __future__ import annotations

import pytest
import torch

from vitssl.backbones import narrow
from vitssl.backbones.narrow import NarrowAttention


@pytest.mark.parametrize("head_dim", [1, 8, 15, 16, 20])
@pytest.mark.parametrize("block", [1, 200, 2**20])
def test_it_is_timms_attention(head_dim, block, monkeypatch):
    """Eight heads and more at a time, the last part smaller, or all at once."""
    monkeypatch.setattr(narrow, "BLOCK", block)
    torch.manual_seed(0)
    attention = NarrowAttention(5 * head_dim, num_heads=5, qkv_bias=True).double()
    results = []
    for fused in (True, False):  # the unfused one is timm's own
        attention.fused_attn = fused
        attention.zero_grad()
        tokens_BND = torch.linspace(-2, 2, 4 * 7 * 5 * head_dim).double().reshape(4, 7, -1).requires_grad_()
        out_BND = attention(tokens_BND)
        out_BND.square().sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(attention(tokens_BND), out_BND, rtol=1e-10, atol=1e-12)
        results.append([out_BND, tokens_BND.grad, *(p.grad for p in attention.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_gradients_by_differences():
    qkv_3MCN = torch.randn(3, 4, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda qkv: narrow.attend(qkv, 0.7), (qkv_3MCN,))


def test_only_narrow_heads_in_fp32_on_a_cpu_leave_the_fused_kernel(monkeypatch):
    widths = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda q, *rest, **more: widths.append(q.shape[-1]) or fused(q, *rest, **more)
    )
    for head_dim in (8, 16, 64):
        NarrowAttention(2 * head_dim, num_heads=2)(torch.zeros(1, 3, 2 * head_dim))
    assert widths == [16, 64]
    narrow_heads, tokens_BND = NarrowAttention(16, num_heads=2), torch.zeros(1, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        narrow_heads(tokens_BND)
    narrow_heads(tokens_BND, attn_mask=torch.zeros(3, 3))
    assert widths == [16, 64, 8, 8]
