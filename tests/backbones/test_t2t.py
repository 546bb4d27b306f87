"""T2T-ViT against loops written from the papers, the published counts, and the names of the released files."""

from __future__ import annotations

import logging
import math

import pytest
import torch
import torch.nn.functional as F
from fvcore.nn import FlopCountAnalysis
from torch import nn
from torch._dynamo.testing import CompileCounter

from vitssl import backbones, config
from vitssl.backbones import t2t
from vitssl.backbones.t2t import T2T, TokenPerformer


def backbone(**fields) -> T2T:
    torch.manual_seed(0)
    return T2T(config.merge(config.BackboneConfig, {"name": "t2t_pico"} | fields)).eval()


def run(network: T2T, images_BCHW, out_indices=()):
    return network(network.embed(images_BCHW), out_indices=out_indices)


@pytest.mark.parametrize(("classes", "total"), [(1000, 21_465_806), (10, 21_084_656)])
def test_trainable_parameters_are_the_published_ones_with_a_linear_head(classes, total):
    with torch.device("meta"):
        network = T2T(config.BackboneConfig(name="t2t_vit_14"))
    assert sum(p.numel() for p in network.parameters()) + (network.embed_dim + 1) * classes == total
    assert {name: tuple(value.shape) for name, value in network.named_buffers()} == {
        "tokens_to_token.attention1.w": (32, 64),
        "tokens_to_token.attention2.w": (32, 64),
    }


# ------------------------------------------------------------------------------------------------------ tokens to token


def slow_attention(performer: TokenPerformer, q_ND, k_ND, v_ND):
    """Query by query and feature by feature: positive random features as weights of the values (Performer, Eq. 4 and Lemma 1)."""
    m = len(performer.w)

    def feature(x_D, i: int):
        along = sum(w * x for w, x in zip(performer.w[i].tolist(), x_D, strict=True))
        return math.exp(along - sum(x * x for x in x_D) / 2) / math.sqrt(m)

    phi_q, phi_k = ([[feature(x_D, i) for i in range(m)] for x_D in rows.tolist()] for rows in (q_ND, k_ND))
    out = []
    for own in phi_q:
        weights = [sum(a * b for a, b in zip(own, other, strict=True)) for other in phi_k]
        out.append(sum(weight * v_D for weight, v_D in zip(weights, v_ND, strict=True)) / (sum(weights) + 1e-8))
    return torch.stack(out)


def test_performer_attention_equals_the_loop_over_queries_and_features():
    torch.manual_seed(0)
    performer = TokenPerformer(10)
    q, k, v = (0.3 * torch.randn(2, 5, 64) for _ in range(3))
    expected = torch.stack([slow_attention(performer, *parts) for parts in zip(q, k, v, strict=True)])
    torch.testing.assert_close(performer.attend(q, k, v), expected, atol=1e-6, rtol=1e-4)


def test_many_gaussian_features_approach_softmax_attention():
    """The features are unbiased for exp(q . k) where directions have the length of Gaussian ones (Lemma 1)."""
    torch.manual_seed(0)
    performer = TokenPerformer(10)
    performer.w = torch.randn(100_000, 64)
    q, k, v = (0.15 * torch.randn(1, 6, 64) for _ in range(3))
    expected = (q @ k.transpose(1, 2)).softmax(-1) @ v
    error, effect = performer.attend(q, k, v) - expected, v.mean(1, keepdim=True) - expected
    assert error.norm() < 0.2 * effect.norm()


def test_random_directions_are_orthogonal_and_of_length_root_m():
    for performer in (backbone().tokens_to_token.attention1, backbone().tokens_to_token.attention2):
        torch.testing.assert_close(performer.w @ performer.w.T, 32 * torch.eye(32), atol=1e-4, rtol=0)


def test_a_token_transformer_adds_to_its_values():
    torch.manual_seed(0)
    performer, tokens_BNE = TokenPerformer(10).eval(), torch.randn(2, 5, 10)
    k, q, v = performer.kqv(performer.norm1(tokens_BNE)).split(64, dim=-1)
    attended = torch.stack([slow_attention(performer, *parts) for parts in zip(q, k, v, strict=True)])
    hidden = v + performer.proj(attended)
    normed = F.layer_norm(hidden, (64,), performer.norm2.weight, performer.norm2.bias, 1e-5)
    expected = hidden + performer.mlp[2](F.gelu(performer.mlp[0](normed)))
    torch.testing.assert_close(performer(tokens_BNE), expected, atol=1e-5, rtol=1e-4)


def test_dropout_acts_in_the_token_transformers_alone_and_in_training_alone():
    network, images = backbone(), torch.randn(1, 3, 32, 32)
    embedded = network.embed(images)
    assert torch.equal(network.embed(images).tokens, embedded.tokens)
    network.train()
    assert not torch.allclose(network.embed(images).tokens, network.embed(images).tokens)
    assert torch.equal(network(embedded).tokens_BND, network(embedded).tokens_BND)
    assert [p.p for p in network.tokens_to_token.modules() if isinstance(p, nn.Dropout)] == [0.1] * 4


def test_a_soft_split_token_is_its_window_channel_by_channel():
    map_BCHW = torch.randn(1, 2, 8, 12)
    tokens = t2t.soft_split(map_BCHW, 3, stride=2, padding=1)
    padded_CHW = F.pad(map_BCHW, (1, 1, 1, 1))[0]
    expected = [padded_CHW[:, r : r + 3, c : c + 3].flatten() for r in range(0, 8, 2) for c in range(0, 12, 2)]
    assert torch.equal(tokens[0], torch.stack(expected))


@pytest.mark.parametrize("size_px", [32, 96, 224])
def test_the_token_grids_shrink_by_four_two_and_two(size_px):
    network, seen = backbone(), []
    for part in (network.tokens_to_token.attention1, network.tokens_to_token.attention2, network.tokens_to_token.project):
        part.register_forward_hook(lambda part, inputs, out: seen.append((inputs[0].shape[1], inputs[0].shape[2])))
    features = run(network, torch.randn(1, 3, size_px, size_px), out_indices=(0, 1))
    side = size_px // 16
    assert seen == [((4 * side) ** 2, 147), ((2 * side) ** 2, 576), (side**2, 576)]
    assert features.grid == network.grid(size_px) == (side, side)
    out = torch.cat([features.prefix_BPD, features.tokens_BND], dim=1)
    assert torch.equal(network.norm(features.intermediates[1].sequence()), out) and features.intermediates[
        0
    ].sequence().shape == out.shape == (1, 1 + side**2, 96)


# ---------------------------------------------------------------------------------------------------------- transformer


def test_positions_are_the_transformers_table():
    table_ND = t2t.sinusoid_positions(197, 384)
    for n, j in ((0, 0), (0, 1), (1, 0), (1, 1), (5, 10), (5, 11), (196, 382), (196, 383)):
        angle = n / 10000 ** (2 * (j // 2) / 384)
        assert table_ND[n, j].item() == pytest.approx(math.cos(angle) if j % 2 else math.sin(angle), abs=1e-6)
    assert torch.equal(t2t.sinusoid_positions(37, 384), table_ND[:37])  # smaller images take the first rows


def test_row_zero_is_the_cls_tokens_and_the_patches_follow():
    network, images = backbone(), torch.randn(2, 3, 64, 64)
    table_ND = t2t.sinusoid_positions(17, 96)
    tokens = network.embed(images).tokens
    torch.testing.assert_close(tokens, network.tokens_to_token(images, (4, 4)) + table_ND[1:])
    network.blocks = nn.ModuleList()
    features = network(network.embed(images))
    torch.testing.assert_close(features.prefix_BPD[0], network.norm(network.cls_token[0] + table_ND[:1]))


@pytest.mark.parametrize("kind", ["head_dim", "embed_dim"])
def test_attention_scale_against_the_loop_over_heads(kind):
    network = backbone(attention_scale=kind)
    attention, tokens_BND = network.blocks[0].attn, 3 * torch.randn(2, 7, 96)
    scale = {"head_dim": 32, "embed_dim": 96}[kind] ** -0.5
    nn.init.normal_(attention.qkv.weight, std=0.2)
    q, k, v = attention.qkv(tokens_BND).chunk(3, dim=-1)
    heads = []
    for own in (slice(0, 32), slice(32, 64), slice(64, 96)):
        weights_BNN = (q[..., own] @ k[..., own].transpose(1, 2) * scale).softmax(-1)
        heads.append(weights_BNN @ v[..., own])
    expected = attention.proj(torch.cat(heads, dim=-1))
    for fused in (True, False):
        attention.fused_attn = fused
        torch.testing.assert_close(attention(tokens_BND), expected, atol=1e-4, rtol=1e-4)


def test_layer_ids_run_from_tokens_to_token_to_the_norm():
    network = backbone()
    ids = {name: network.layer_id(name) for name, _ in network.named_parameters()}
    assert {value for name, value in ids.items() if name.startswith(("tokens_to_token.", "cls_token"))} == {0}
    assert (ids["blocks.0.norm1.weight"], ids["blocks.1.mlp.fc2.bias"], ids["norm.weight"]) == (1, 2, 3)


def test_drop_path_grows_to_the_last_block():
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in backbone(depth=3, drop_path=0.2).blocks]
    assert rates == [0, 0.1, 0.2]


# ------------------------------------------------------------------------------------------------------- released files


def released_names() -> set[str]:
    """Of T2T-ViT-14's file, without its head."""
    both = ("weight", "bias")
    names = {"cls_token", "pos_embed", "norm.weight", "norm.bias"}
    names |= {f"tokens_to_token.project.{kind}" for kind in both}
    for i in (1, 2):
        names.add(f"tokens_to_token.attention{i}.w")
        parts = ("kqv", "proj", "norm1", "norm2", "mlp.0", "mlp.2")
        names |= {f"tokens_to_token.attention{i}.{part}.{kind}" for part in parts for kind in both}
    for i in range(14):
        parts = ("norm1", "norm2", "attn.proj", "mlp.fc1", "mlp.fc2")
        names |= {f"blocks.{i}.{part}.{kind}" for part in parts for kind in both} | {f"blocks.{i}.attn.qkv.weight"}
    return names


def test_names_are_those_of_the_released_file_whose_fixed_positions_are_dropped():
    with torch.device("meta"):
        network, plain = (T2T(config.BackboneConfig(name="t2t_vit_14", attention_scale=scale)) for scale in ("embed_dim", "head_dim"))
    theirs = {f"backbone.{name}": torch.zeros(()) for name in released_names()}
    theirs["backbone.pos_embed"] = t2t.sinusoid_positions(197, 384)[None]
    adapted = network.convert_state_dict(theirs, "backbone.")
    assert adapted.keys() == {f"backbone.{name}" for name in network.state_dict()}
    assert "backbone.pos_embed" in theirs
    with pytest.raises(config.ConfigError, match=r"attention_scale: head_dim, but .* embed_dim; set that"):
        plain.convert_state_dict(theirs, "backbone.")


def test_positions_that_were_trained_are_not_dropped():
    trained = {"backbone.pos_embed": torch.randn(1, 17, 96)}
    assert backbone().convert_state_dict(trained, "backbone.").keys() == trained.keys()


# ----------------------------------------------------------------------------------------------- cost, precision, graph


class Classifier(nn.Module):
    def __init__(self, network: T2T, classes: int):
        super().__init__()
        self.network, self.head = network, nn.Linear(network.embed_dim, classes)

    def forward(self, images_BCHW):
        return self.head(run(self.network, images_BCHW).prefix_BPD[:, 0])


def test_macs_at_224_px_are_the_published_4_8_g():
    logging.getLogger("fvcore").setLevel(logging.ERROR)
    network = Classifier(backbones.build(config.BackboneConfig(name="t2t_vit_14", fused_attention=False), 224), 1000).eval()
    analysis = FlopCountAnalysis(network, torch.zeros(1, 3, 224, 224)).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    counted = analysis.tracer_warnings("none").by_operator()
    linear, matmul = 196 * 576 * 384 + 384 * 1000, 0
    for N, E in ((3136, 147), (784, 576)):
        linear += N * (E * 3 * 64 + 3 * 64 * 64 + 2 * 64 * 32)  # kqv, proj and MLP, the features of queries and keys
        matmul += N * (2 * 32 * 64 + 32)
    linear += 14 * 197 * (3 + 1 + 2 * 3) * 384**2
    matmul += 14 * 2 * 197**2 * 384
    assert (counted["linear"], counted["matmul"]) == (linear, matmul)
    assert analysis.total() / 1e9 == pytest.approx(4.8, rel=0.001)


def test_bfloat16_autocast_stays_close():
    network, images = backbone(), torch.randn(2, 3, 64, 64)
    expected = run(network, images).tokens_BND
    with torch.autocast("cpu", torch.bfloat16):
        features = run(network, images)
        features.prefix_BPD.float().square().mean().backward()
    assert F.cosine_similarity(features.tokens_BND.float().flatten(), expected.flatten(), dim=0) > 0.999
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().max() > 0 for p in network.parameters())


def test_compiles_to_one_graph():
    torch._dynamo.reset()
    network, counter = backbone(), CompileCounter()
    compiled = torch.compile(lambda images: run(network, images, out_indices=(0,)).tokens_BND, backend=counter, fullgraph=True)
    for _ in range(2):
        images = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(compiled(images), run(network, images).tokens_BND)
    assert counter.frame_count == 1
