"""Parts that backbones and decoders share."""

from __future__ import annotations

import pytest
import torch

from vitssl.backbones.layers import PaddedAttention


@pytest.mark.parametrize("head_dim", [1, 8, 15, 16, 20])
def test_padded_heads_change_nothing(head_dim):
    torch.manual_seed(0)
    attention = PaddedAttention(3 * head_dim, num_heads=3, qkv_bias=True).double()
    results = []
    for fused in (True, False):
        attention.fused_attn = fused
        attention.zero_grad()
        tokens_BND = torch.linspace(-2, 2, 2 * 7 * 3 * head_dim).double().reshape(2, 7, -1).requires_grad_()
        out_BND = attention(tokens_BND)
        out_BND.square().sum().backward()
        results.append([out_BND, tokens_BND.grad, *(p.grad for p in attention.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_narrow_heads_are_padded_where_a_cpu_computes(monkeypatch):
    widths = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda q, *rest, **more: widths.append(q.shape[-1]) or fused(q, *rest, **more)
    )
    for head_dim in (8, 16, 64):
        PaddedAttention(2 * head_dim, num_heads=2)(torch.zeros(1, 3, 2 * head_dim))
    assert widths == [16, 16, 64]
