"""SL-ViT's parts against slow loops from the paper; the sizes of its authors' models."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.sl_vit import LocalAttention, ShiftedPatches, with_shifts
from vitssl.backbones.vit import ViT

SMALL = {"name": "vit_tiny", "patch_size": 4, "depth": 9, "num_heads": 12, "mlp_ratio": 2.0, "qkv_bias": False}
SL = {"tokenizer": "shifted", "attention": "local"}


def vit(**fields) -> ViT:
    torch.manual_seed(0)
    return ViT(config.merge(config.BackboneConfig, SMALL, fields), 32).eval()


@pytest.mark.parametrize(("fields", "count"), [({}, 2_692_426), (SL, 2_729_878)])
def test_parameter_counts_are_the_authors(fields, count):
    """With the head for 10 classes.

    The 37,452 more are 192 * (240 - 48) weights of the wider linear layer (which keeps its bias), a LayerNorm of its 240 inputs,
    and 9 * 12 temperatures.
    """
    head = 192 * 10 + 10
    assert sum(p.numel() for p in vit(**fields).parameters()) + head == count


def slow_tokens(tokenizer: ShiftedPatches, image_CHW: torch.Tensor) -> torch.Tensor:
    """Patch by patch, and in each the image's own pixels, then those that lie half a patch up-left, up-right, down-left, down-right."""
    p, size = tokenizer.patch_size, image_CHW.shape[-1]
    rows = []
    for top in range(0, size, p):
        for left in range(0, size, p):
            values = []
            for down, right in ((0, 0), (-p // 2, -p // 2), (-p // 2, p // 2), (p // 2, -p // 2), (p // 2, p // 2)):
                for channel_HW in image_CHW:
                    for r in range(top + down, top + down + p):
                        for c in range(left + right, left + right + p):
                            inside = 0 <= r < size and 0 <= c < size
                            values.append(channel_HW[r, c] if inside else torch.zeros(()))
            values_E = torch.stack(values)
            normed_E = (values_E - values_E.mean()) / (values_E.var(unbiased=False) + 1e-6) ** 0.5
            normed_E = normed_E * tokenizer.norm.weight + tokenizer.norm.bias
            rows.append(tokenizer.proj.weight @ normed_E + tokenizer.proj.bias)
    return torch.stack(rows)


def test_shifted_patches_equal_the_slow_loop():
    torch.manual_seed(0)
    tokenizer, images_BCHW = ShiftedPatches(4, 10), torch.randn(2, 3, 12, 12)
    torch.nn.init.normal_(tokenizer.norm.weight)
    torch.nn.init.normal_(tokenizer.norm.bias)
    got_BND = tokenizer(images_BCHW)
    for b in range(2):
        assert torch.allclose(got_BND[b], slow_tokens(tokenizer, images_BCHW[b]), atol=1e-4)


def test_a_pixel_moves_along_the_diagonals():
    images_BCHW = torch.zeros(1, 1, 7, 7)
    images_BCHW[0, 0, 3, 3] = 1
    places = [tuple(channel_HW.nonzero()[0].tolist()) for channel_HW in with_shifts(images_BCHW, 2)[0]]
    assert places == [(3, 3), (5, 5), (5, 1), (1, 5), (1, 1)]


def slow_attention(attention: LocalAttention, tokens_ND: torch.Tensor) -> torch.Tensor:
    """Query by query: a softmax over the other tokens alone, at the head's temperature."""
    N, d = len(tokens_ND), attention.head_dim
    q, k, v = attention.qkv(tokens_ND).chunk(3, dim=1)
    out = []
    for n in range(N):
        others, heads = [m for m in range(N) if m != n], []
        for h in range(attention.num_heads):
            own = slice(h * d, (h + 1) * d)
            logits = torch.stack([q[n, own] @ k[m, own] for m in others]) * attention.scale[h]
            share = logits.exp() / logits.exp().sum()
            heads.append(sum(s * v[m, own] for s, m in zip(share, others, strict=True)))
        out.append(attention.proj(torch.cat(heads)))
    return torch.stack(out)


@pytest.mark.parametrize("fused", [True, False])
def test_local_attention_equals_the_slow_loop(fused):
    torch.manual_seed(0)
    attention, tokens_BND = LocalAttention(12, 3, qkv_bias=True), torch.randn(2, 5, 12)
    layers.set_fused_attention(attention, fused)
    assert attention.scale.tolist() == pytest.approx([0.5] * 3)
    torch.nn.init.uniform_(attention.scale, 0.1, 3.0)
    got_BND = attention(tokens_BND)
    for b in range(2):
        assert torch.allclose(got_BND[b], slow_attention(attention, tokens_BND[b]), atol=1e-5)


def test_every_temperature_is_learned():
    ours = vit(**SL).train()
    ours(ours.embed(torch.randn(2, 3, 32, 32))).prefix_BPD.square().sum().backward()
    assert all((block.attn.scale.grad != 0).all() for block in ours.blocks)


def test_dropped_tokens_leave_the_diagonal_where_it_is():
    """Against the blocks on the kept tokens alone."""
    ours, images_BCHW = vit(attention="local", depth=2), torch.randn(2, 3, 32, 32)
    keep_BM = torch.stack([torch.randperm(64)[:7] for _ in range(2)])
    embedded = ours.embed(images_BCHW)
    features = ours(embedded, keep_BM)
    for b in range(2):
        tokens_ND = torch.cat([ours.cls_token[0] + ours.pos_embed[0, :1], embedded.tokens[b, keep_BM[b]]])
        for block in ours.blocks:
            tokens_ND = tokens_ND + slow_attention(block.attn, block.norm1(tokens_ND))
            tokens_ND = tokens_ND + block.mlp(block.norm2(tokens_ND))
        assert torch.allclose(features.tokens_BND[b], ours.norm(tokens_ND)[1:], atol=1e-4)


def test_shifted_tokens_cannot_hide_anything(make_run):
    """A token of a kept patch would hold pixels of its hidden neighbours."""
    shifted = {"backbone.tokenizer": "shifted", "objectives": {"classify": {}}}
    make_run(shifted)
    for hide in ("drop", "mask"):
        with pytest.raises(config.ConfigError, match=r"objectives\.mae: backbone\.tokenizer=shifted lets every token see"):
            make_run(shifted, {"objectives.mae": {"hide": hide, "decoder_heads": 2}})
    with pytest.raises(config.ConfigError, match=r"backbone\.patch_size: 1 px cannot be shifted"):
        make_run(shifted, {"backbone.patch_size": 1})
    unset = r"backbone\.tokenizer=patches backbone\.attention=plain"
    with pytest.raises(
        config.ConfigError, match=rf"backbone\.tokenizer: .* a backbone that has this option \(swin_pico does not\); .*: {unset}$"
    ):
        config.check(
            config.merge(config.Run, {"backbone": {"name": "swin_pico", **SL}, "objectives.classify": {"pool": "mean"}}, ["data.shards=x"])
        )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_it_is_one_graph(precision):
    ours, counter = vit(**SL, depth=2), CompileCounter()
    compiled = torch.compile(lambda images: ours(ours.embed(images)).prefix_BPD, backend=counter)
    images_BCHW = torch.randn(2, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        got_BPD = compiled(images_BCHW)
    assert counter.frame_count == 1
    assert torch.allclose(got_BPD.float(), ours(ours.embed(images_BCHW)).prefix_BPD, atol=0.05 if precision == "bf16" else 1e-5)
