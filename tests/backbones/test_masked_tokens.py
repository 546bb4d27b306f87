"""Masked tokens against the paper's equations, written as slow loops, and against the plain network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vitssl import backbones, config, model
from vitssl.backbones.masked_tokens import hard_weights, soft_weights, subset_sizes
from vitssl.checkpoints import pretrained, tensor_files
from vitssl.config import ConfigError
from vitssl.costs import cost

TAU = 0.1
SMALL = {"name": "vit_pico", "embed_dim": 32, "depth": 3, "num_heads": 2, "patch_size": 4}
MASKED = {"count": 4, "blocks": 2}


def softsort(scores_N: Tensor) -> Tensor:
    """The whole matrix (N, N), with the sign of its authors' code."""
    rows = scores_N.sort(descending=True).values
    return torch.softmax(-(rows[:, None] - scores_N[None, :]).abs() / TAU, dim=1)


def plain_weights(scores_BJN: Tensor) -> Tensor:
    J, N = scores_BJN.shape[1:]
    sizes = [math.ceil(j * N / J) for j in range(1, J + 1)]
    means = [torch.stack([softsort(image_JN[j])[:m].mean(0) for j, m in enumerate(sizes)]) for image_JN in scores_BJN]
    return torch.stack(means)


def vit(masked: dict | None = None, size_px: int = 16, **fields):
    cfg = config.fill(config.BackboneConfig, SMALL | fields | {"masked_tokens": masked})
    torch.manual_seed(0)
    return backbones.build(cfg, size_px).eval()


def images(size_px: int = 16, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size_px, size_px, generator=torch.Generator().manual_seed(1))


def features(network, images_BCHW: Tensor, **how):
    return network(network.embed(images_BCHW), **how)


# ------------------------------------------------------------------------------------------------------------ selection


@pytest.mark.parametrize(
    ("count", "tokens", "sizes"),
    [
        (4, 196, [49, 98, 147, 196]),
        (28, 196, [7 * j for j in range(1, 29)]),
        (4, 36, [9, 18, 27, 36]),
        (28, 36, [2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 15]),
        (28, 576, [21, 42, 62, 83, 103]),
        (28, 784, [28 * j for j in range(1, 29)]),
    ],
)
def test_sizes_of_the_subsets(count: int, tokens: int, sizes: list[int]) -> None:
    got = subset_sizes(count, tokens)
    assert got[: len(sizes)] == sizes and len(got) == count and got[-1] == tokens


def test_the_mean_of_softsorts_first_rows() -> None:
    """Of scores 0.1, 0.3, 0.2; all rows are not the plain mean."""
    weights_1JN = soft_weights(torch.tensor([[[0.1, 0.3, 0.2]] * 3]), TAU)
    values_ND = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    expected_JD = torch.tensor([[0.5795, 1.1547], [0.9718, 1.2594], [1.0328, 1.0328]])
    torch.testing.assert_close((weights_1JN @ values_ND)[0], expected_JD, atol=1e-4, rtol=0)
    torch.testing.assert_close(softsort(torch.tensor([0.1, 0.3, 0.2]))[0], torch.tensor([0.0900, 0.6652, 0.2447]), atol=1e-4, rtol=0)
    assert softsort(torch.tensor([2.0, -1.0, 0.5, 1.0])).argmax(1).tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize("tokens", [36, 196, 576, 784])
@pytest.mark.parametrize("spread", [0.05, 1.0, 30.0])
def test_the_weights_alone_are_those_of_the_whole_matrix(tokens: int, spread: float) -> None:
    """In value and gradient, from scores that are nearly equal to scores of which each softmax sees one."""
    scores_BJN = spread * torch.randn(2, 4, tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pull_BJN = torch.randn(2, 4, tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = []
    for weights in (lambda s: soft_weights(s, TAU), plain_weights):
        leaf = scores_BJN.clone().requires_grad_()
        value = weights(leaf)
        (gradient,) = torch.autograd.grad((value * pull_BJN).sum(), leaf)
        pairs.append((value.detach(), gradient))
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-9)
    single = soft_weights(scores_BJN.float(), TAU)
    torch.testing.assert_close(single, pairs[1][0].float(), atol=3e-6, rtol=0)
    torch.testing.assert_close(single.sum(-1), torch.ones(2, 4), atol=3e-5, rtol=0)


def test_gradients_of_a_selection_are_those_of_finite_differences() -> None:
    scores = torch.randn(1, 2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: soft_weights(s, TAU), (scores,))


def test_equal_scores_have_equal_weights_and_a_finite_gradient() -> None:
    scores = torch.zeros(1, 3, 12, requires_grad=True)
    weights = soft_weights(scores, TAU)
    torch.testing.assert_close(weights, torch.full((1, 3, 12), 1 / 12))
    (weights * torch.arange(12)).sum().backward()
    assert scores.grad.isfinite().all()


def test_hard_weights_are_the_mean_of_the_highest() -> None:
    scores_BJN = torch.randn(3, 4, 10)
    weights_BJN = hard_weights(scores_BJN)
    for b in range(3):
        for j, m in enumerate([3, 5, 8, 10]):
            expected = torch.zeros(10)
            expected[scores_BJN[b, j].topk(m).indices] = 1 / m
            torch.testing.assert_close(weights_BJN[b, j], expected)


# -------------------------------------------------------------------------------------------------------- the network


def slow_forward(network, images_BCHW: Tensor, mix: float | None) -> list[Tensor]:
    """Each image's sequence after the final norm, as the paper's equations say; ``mix`` None carries tokens through."""
    first, sequences = len(network.blocks) - 2, []
    queries = network.inserted[str(first)].query_JD
    for image_CHW in images_BCHW:
        z_TD = torch.cat([network.cls_token[0] + network.pos_embed[0, :1], network.embed(image_CHW[None]).tokens[0]])
        for i, block in enumerate(network.blocks):
            if i == first:
                rows = [softsort(z_TD[1:] @ query)[:m].mean(0) for query, m in zip(queries, [4, 8, 12, 16], strict=True)]
                z_TD = torch.cat([z_TD, torch.stack([row @ z_TD[1:] for row in rows])])
            elif i > first and mix is not None:
                pooled = torch.stack([row @ z_TD[1:17] for row in rows])
                z_TD = torch.cat([z_TD[:17], mix * pooled + (1 - mix) * z_TD[17:]])
            z_TD = block(z_TD[None])[0]
        sequences.append(network.norm(z_TD))
    return sequences


@pytest.mark.parametrize(("later", "mix"), [("mix", 0.2), ("mix", 0.7), ("carry", None)])
def test_a_pass_is_the_papers_in_value_and_gradient(later: str, mix: float | None) -> None:
    network = vit(MASKED | {"later_blocks": later} | ({"mix": mix} if mix else {})).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    pull = torch.randn(2, 21, 32, dtype=torch.float64)
    ours = features(network, images().double())
    theirs = torch.stack(slow_forward(network, images().double(), mix))
    assert ours.extra_BJD.shape == (2, 4, 32) and ours.selection_BJN.shape == (2, 4, 16)
    torch.testing.assert_close(ours.sequence(), theirs, atol=1e-10, rtol=1e-9)
    gradients = [torch.autograd.grad((value * pull).sum(), tuple(network.parameters())) for value in (ours.sequence(), theirs)]
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-8)


def test_without_masked_tokens_it_is_the_plain_network() -> None:
    plain, masked = vit(), vit(MASKED)
    kept = {name: value for name, value in masked.state_dict().items() if not name.startswith("inserted.")}
    assert kept.keys() == plain.state_dict().keys() and all(torch.equal(value, kept[name]) for name, value in plain.state_dict().items())
    assert sum(p.numel() for p in masked.parameters()) - sum(p.numel() for p in plain.parameters()) == 4 * 32
    with_tokens, without = (features(network, images(), out_indices=(0, 1, 2)) for network in (masked, plain))
    assert torch.equal(with_tokens.intermediates[0].sequence(), without.intermediates[0].sequence())
    assert not torch.allclose(with_tokens.intermediates[1].tokens_BND, without.intermediates[1].tokens_BND)
    assert [f.extra_BJD.shape[1] for f in with_tokens.intermediates.values()] == [0, 4, 4] and without.extra_BJD.shape[1] == 0


def test_new_weights_are_the_queries_of_the_first_augmented_block() -> None:
    for name, count, expected in (("vit_small", 4, 1_536), ("vit_small", 28, 10_752), ("vit_base", 4, 3_072)):
        cfg = config.fill(config.BackboneConfig, {"name": name, "masked_tokens": {"count": count}})
        with torch.device("meta"):
            network = backbones.build(cfg, 224)
        new = {n: p for n, p in network.named_parameters() if n.startswith("inserted.")}
        assert {n: p.numel() for n, p in new.items()} == {"inserted.8.query_JD": expected}
        assert network.layer_id("inserted.8.query_JD") == 9


def test_permuted_patches_have_permuted_selections() -> None:
    network, order = vit(MASKED), torch.randperm(16, generator=torch.Generator().manual_seed(5))
    whole = features(network, images())
    permuted = features(network, images(), keep_BM=order.expand(2, -1))
    torch.testing.assert_close(permuted.selection_BJN, whole.selection_BJN[:, :, order], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(permuted.extra_BJD, whole.extra_BJD, atol=1e-5, rtol=1e-4)


def test_a_pass_over_some_tokens_selects_among_those() -> None:
    network = vit(MASKED)
    kept = features(network, images(), keep_BM=torch.tensor([[0, 3, 9, 12, 15], [1, 2, 3, 4, 5]]))
    assert kept.selection_BJN.shape == (2, 4, 5) and kept.extra_BJD.shape == (2, 4, 32)


def test_other_sizes_of_images_have_subsets_of_their_own() -> None:
    network = vit(MASKED)
    local = features(network, images(8))
    assert local.selection_BJN.shape == (2, 4, 4)
    assert features(network, images(32)).selection_BJN.shape == (2, 4, 64)


@pytest.mark.parametrize(("count", "size_px"), [(4, 96), (28, 96), (4, 224), (28, 384), (28, 448)])
def test_at_the_papers_sizes_every_token_has_its_share_of_patches(count: int, size_px: int) -> None:
    """36, 196, 576 and 784 patches; the positions are those of 224 px, resized."""
    network = vit({"count": count, "blocks": 2, "selection": "hard"}, size_px=224, patch_size=16)
    with torch.no_grad():
        out = features(network, images(size_px, 1))
    N = (size_px // 16) ** 2
    assert out.extra_BJD.shape == (1, count, 32) and out.extra_BJD.isfinite().all()
    assert (out.selection_BJN > 1e-6).sum(-1).tolist() == [[math.ceil(j * N / count) for j in range(1, count + 1)]]


@pytest.mark.parametrize("network", [{"name": "t2t_pico"}, {"attention": "local"}, {"tokenizer": "shifted"}, {"reg_tokens": 2}])
def test_every_isotropic_transformer_has_them(make_run, network: dict) -> None:
    size = {"name": "t2t_pico", "patch_size": None} if network == {"name": "t2t_pico"} else SMALL | network
    layers = {"backbone": size, "data.image_size": 32, "objectives.classify": {}}
    masked = {"backbone.masked_tokens": {"count": 3, "blocks": 1}}
    plain, with_them = (model.build(make_run(layers, *more), 10) for more in ([], [masked]))
    out = features(with_them.backbone, images(32))
    assert out.extra_BJD.shape[1] == 3 and out.prefix_BPD.shape == features(plain.backbone, images(32)).prefix_BPD.shape
    (out.prefix_BPD.sum() + out.extra_BJD.sum()).backward()
    assert with_them.backbone.inserted[str(with_them.backbone.num_layers - 1)].query_JD.grad.abs().sum() > 0


def test_their_cost_is_that_of_longer_sequences_and_of_selecting(make_run) -> None:
    """In an augmented block J tokens more go through all linear layers, and the attention has T^2 pairs; scores and means are products."""
    run = make_run({"backbone": SMALL, "data.image_size": 16, "objectives.classify": {}})
    masked = make_run({"backbone": SMALL | {"masked_tokens": MASKED}, "data.image_size": 16, "objectives.classify": {}})
    one, other = cost.measure(run, 10), cost.measure(masked, 10)
    D, N, T, J = 32, 16, 17, 4
    assert other["params_inference"] - one["params_inference"] == J * D
    linear, pairs = J * (4 + 8) * D * D, 2 * ((T + J) ** 2 - T**2) * D
    norms = 5 * J * D  # fvcore's, for each LayerNorm
    selecting = J * N * D  # the scores; a mean is as many
    assert other["macs_inference"] - one["macs_inference"] == 2 * (linear + pairs + 2 * norms + selecting) + selecting + norms


def test_a_hard_selection_has_the_soft_ones_gradient() -> None:
    soft, hard = vit(MASKED), vit(MASKED | {"selection": "hard"})
    gradients = []
    for network in (soft, hard):
        part = network.inserted["1"]
        tokens = features(network, images(), out_indices=(0,)).intermediates[0]
        weights = part.weights(tokens.tokens_BND.detach())
        (weights * torch.arange(16)).sum().backward()
        gradients.append(part.query_JD.grad)
    torch.testing.assert_close(weights.detach().sort().values, hard_weights(torch.randn(2, 4, 16)).sort().values, atol=1e-6, rtol=0)
    torch.testing.assert_close(*gradients)


def test_a_random_selection_is_drawn_for_each_image_and_is_the_same_in_every_evaluation() -> None:
    network = vit(MASKED | {"selection": "random"})
    assert not [name for name, _ in network.named_parameters() if name.startswith("inserted.")]
    first, again = (features(network, images()).selection_BJN for _ in range(2))
    assert torch.equal(first, again) and torch.equal(first[0], first[1])
    network.train()
    first, again = (features(network, images()).selection_BJN for _ in range(2))
    assert not torch.equal(first, again) and not torch.equal(first[0], first[1])
    torch.testing.assert_close(first.sum(-1), torch.ones(2, 4))


def test_in_bfloat16_it_selects_as_in_float32() -> None:
    network = vit(MASKED)
    tokens = features(network, images(), out_indices=(0,)).intermediates[0].tokens_BND
    exact = network.inserted["1"].weights(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(network.inserted["1"].weights(tokens), exact)
        halved = features(network, images())
    assert (halved.extra_BJD - features(network, images()).extra_BJD).abs().max() < 0.1


def test_scores_after_a_norm_do_not_see_the_tokens_scale() -> None:
    raw, normed = (vit(MASKED | {"scores": scores}).inserted["1"] for scores in ("raw", "normed"))
    tokens = torch.randn(2, 16, 32)
    torch.testing.assert_close(normed.weights(tokens), normed.weights(3 * tokens), atol=1e-4, rtol=1e-3)
    assert not torch.allclose(raw.weights(tokens), raw.weights(3 * tokens), atol=1e-3)


@pytest.mark.parametrize("small", [SMALL, {"name": "t2t_pico", "embed_dim": 32, "depth": 3, "num_heads": 2, "patch_size": None}])
def test_queries_of_another_number_are_interpolated(tmp_path, make_run, small: dict) -> None:
    layers = {"backbone": small | {"masked_tokens": MASKED}, "data.image_size": 32, "objectives.classify": {}}
    trained = model.build(make_run(layers), 10)
    tensor_files.save(tmp_path / "last.pt", {"model": trained.state_dict()})
    run = make_run(layers, {"backbone.masked_tokens.count": 7, "init_from": str(tmp_path / "last.pt")})
    network = model.build(run, 10)
    pretrained.init_from(network, network.backbone, run)
    theirs, ours = trained.backbone.inserted["1"].query_JD, network.backbone.inserted["1"].query_JD
    assert ours.shape == (7, 32)
    torch.testing.assert_close(ours[3], (theirs[1] + theirs[2]) / 2)  # the middle stays in the middle


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"count": 0}, "masked_tokens.count: 0 is less than 1"),
        ({"blocks": 4}, "masked_tokens.blocks: 4 is more than the backbone's 3 blocks"),
        ({"blocks": 1, "later_blocks": "carry", "mix": 0.5}, "masked_tokens.mix: 0.5 .* only with later_blocks: mix; leave it out"),
        ({"blocks": 1, "temperature": float("nan")}, "masked_tokens.temperature: nan is not positive"),
        ({"blocks": 1, "temperature": 0.0}, "masked_tokens.temperature: 0.0 is not positive"),
        ({"blocks": 1, "mix": 1.5}, r"masked_tokens.mix: 1.5 is not in \[0, 1\]"),
        ({"blocks": 1, "selection": "random", "temperature": 0.5}, "masked_tokens.temperature: 0.5 .* only with a learned selection;"),
        ({"blocks": 1, "selection": "randm"}, "masked_tokens.selection: .*'randm'"),
    ],
)
def test_what_cannot_be_is_one_line(make_run, fields: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"backbone\.{words}"):
        make_run({"backbone": SMALL | {"masked_tokens": fields}, "data.image_size": 16, "objectives.classify": {}})


def test_other_backbones_have_none(make_run) -> None:
    swin = {"name": "swin_pico", "depth": None, "embed_dim": None, "num_heads": None, "patch_size": None, "masked_tokens": {}}
    with pytest.raises(ConfigError, match=r"backbone\.masked_tokens: this has .* a backbone that has this option \(swin_pico does not\)"):
        make_run({"backbone": swin, "data.image_size": 64, "objectives.classify": {"pool": "mean"}})
