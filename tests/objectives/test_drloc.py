"""Drloc's pairs, losses and weight against slow loops and closed forms."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from fvcore.nn import FlopCountAnalysis
from torch import nn

from tests.objectives.conftest import batch_of
from vitssl import model
from vitssl.config.objectives.drloc import DrlocConfig
from vitssl.objectives import drloc

OVER_RANKS = "each image's loss is its own"
JOINT = {"objectives.classify": {}, "objectives.drloc": {"pairs": 5, "hidden_dim": 16}}
CODE = {"objectives.drloc": {"target": "raw", "reduction": "mean"}}


def all_pairs(k: int) -> torch.Tensor:
    """(1, k ** 4, 2, 2): every pair of tokens of a k x k grid, once."""
    places = list(itertools.product(range(k), repeat=4))
    return torch.tensor(places).reshape(1, -1, 2, 2)


# --------------------------------------------------------------------------------------------------------------- pairs


def test_pairs_are_uniform_and_with_replacement():
    torch.manual_seed(0)
    places_Bm22 = drloc.draw_pairs(100, (7, 7), 640, torch.device("cpu"))
    assert places_Bm22.shape == (100, 640, 2, 2)
    for values in places_Bm22.flatten(0, 1).flatten(1).T:  # row and column of the first token, of the second
        shares = values.bincount(minlength=7) / 64_000
        assert torch.allclose(shares, torch.full((7,), 1 / 7), atol=0.006)  # four standard deviations
    cells = places_Bm22 @ torch.tensor([7, 1])
    together = (cells[..., 0] * 49 + cells[..., 1]).flatten().bincount(minlength=49**2) / 64_000
    assert together.max() < 2.2 / 49**2 and together.min() > 0.2 / 49**2  # 26.7 draws of each, give or take 5
    same = (cells[..., 0] == cells[..., 1]).float().mean().item()
    assert same == pytest.approx(1 / 49, abs=0.003)


def test_places_of_a_wide_grid_are_uniform_on_each_axis():
    torch.manual_seed(0)
    rows, columns = drloc.draw_pairs(100, (4, 6), 640, torch.device("cpu")).flatten(0, 2).T
    for values, side in ((rows, 4), (columns, 6)):
        assert torch.allclose(values.bincount() / 128_000, torch.full((side,), 1 / side), atol=0.005)  # four standard deviations
    together = (rows * 6 + columns).bincount() / 128_000
    assert torch.allclose(together, torch.full((24,), 1 / 24), atol=0.0023)


def test_pairs_of_a_square_grid_are_the_numbers_of_the_generator():
    """So runs that have begun, and those whose results are kept, draw what they drew."""
    torch.manual_seed(0)
    places_Bm22 = drloc.draw_pairs(3, (7, 7), 64, torch.device("cpu"))
    torch.manual_seed(0)
    assert torch.equal(places_Bm22, torch.randint(7, (3, 64, 2, 2)))


def test_gathered_embeddings_lie_where_the_pairs_say():
    """On a map whose channels are image, row and column, the embeddings' differences are the offsets."""
    b, r, c = torch.meshgrid(torch.arange(3.0), torch.arange(7.0), torch.arange(7.0), indexing="ij")
    tokens_BND = torch.stack([b, r, c], -1).flatten(1, 2)
    places_Bm22 = drloc.draw_pairs(3, (7, 7), 64, torch.device("cpu"))
    first, second = drloc.gather_pairs(tokens_BND, places_Bm22, 7).split(3, dim=-1)
    assert torch.equal(first[..., 0], torch.arange(3.0)[:, None].expand(3, 64)) and torch.equal(first[..., 0], second[..., 0])
    assert torch.equal(first[..., 1:].long(), places_Bm22[:, :, 0])
    assert torch.equal((first - second)[..., 1:], drloc.offsets(places_Bm22, signed=True).float())
    assert torch.equal((first - second)[..., 1:].abs(), drloc.offsets(places_Bm22, signed=False).float())


def test_gradient_reaches_both_embeddings_of_a_pair_and_no_others():
    tokens_BND = torch.randn(2, 9, 4, requires_grad=True)
    places_Bm22 = torch.tensor([[[[0, 1], [2, 2]]], [[[1, 1], [1, 1]]]])
    weights = torch.randn(8)
    (drloc.gather_pairs(tokens_BND, places_Bm22, 3) @ weights).sum().backward()
    expected_BND = torch.zeros(2, 9, 4)
    expected_BND[0, 1], expected_BND[0, 8], expected_BND[1, 4] = weights[:4], weights[4:], weights[:4] + weights[4:]
    assert torch.allclose(tokens_BND.grad, expected_BND)


def test_offsets_of_all_pairs_of_an_axis_have_the_known_histogram():
    offsets_m2 = drloc.offsets(all_pairs(7), signed=False)[0]
    for axis in offsets_m2.T:
        assert (axis.bincount() // 49).tolist() == [7, 12, 10, 8, 6, 4, 2]
    assert drloc.offsets(all_pairs(7), signed=True).unique().tolist() == list(range(-6, 7))


# ------------------------------------------------------------------------------------------------------------- pooling


def slow_pool(map_DHW: torch.Tensor, how: str) -> torch.Tensor:
    size, start = (2, 0) if how == "2x2" else (3, -1)
    _, H, W = map_DHW.shape
    rows = []
    for r, c in itertools.product(range(0, H, 2), range(0, W, 2)):
        window = [
            map_DHW[:, i, j]
            for i in range(r + start, r + start + size)
            for j in range(c + start, c + start + size)
            if 0 <= i < H and 0 <= j < W
        ]
        rows.append(torch.stack(window).mean(0))
    return torch.stack(rows)


@pytest.mark.parametrize("how", ["2x2", "3x3"])
def test_pooling_equals_the_slow_loop_and_leaves_a_constant_map_alone(how):
    tokens_BND = torch.randn(2, 14 * 14, 3)
    pooled = drloc.pool(tokens_BND, (14, 14), how)
    assert pooled.shape == (2, 49, 3)
    for b in range(2):
        assert torch.allclose(pooled[b], slow_pool(tokens_BND[b].T.unflatten(1, (14, 14)), how), atol=1e-6)
    assert torch.allclose(drloc.pool(torch.full((1, 196, 2), 0.7), (14, 14), how), torch.tensor(0.7))
    assert drloc.pool(tokens_BND, (14, 14), "none") is tokens_BND


@pytest.mark.parametrize(("pooling", "side"), [("none", 14), ("2x2", 7), ("3x3", 7)])
def test_config_knows_the_pooled_grid(pooling, side):
    cfg = DrlocConfig(pooling=pooling)
    assert cfg.pooled(14) == side == drloc.pool(torch.zeros(1, 196, 1), (14, 14), pooling).shape[1] ** 0.5


# -------------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(("k", "divisor", "value"), [(7, 1, 2.28571), (7, 7, 0.32653), (14, 1, 4.64286)])
def test_zero_prediction(k, divisor, value):
    """(k^2 - 1) / (3k) an axis; Eq. 2 adds up the two."""
    targets_Bm2 = drloc.offsets(all_pairs(k), signed=False) / divisor
    zeros = torch.zeros_like(targets_Bm2)
    assert drloc.regression_loss(zeros, targets_Bm2, "mean").item() == pytest.approx(value, abs=1e-5)
    assert drloc.regression_loss(zeros, targets_Bm2, "sum").item() == pytest.approx(2 * value, abs=2e-5)


def test_best_constant_prediction():
    targets_Bm2 = drloc.offsets(all_pairs(7), signed=False)
    losses = {x: drloc.regression_loss(torch.full(targets_Bm2.shape, float(x)), targets_Bm2, "mean").item() for x in range(7)}
    assert min(losses, key=losses.get) == 2 and losses[2] == pytest.approx(66 / 49, abs=1e-5)


@pytest.mark.parametrize(("fields", "classes"), [({}, 7), ({"signed": True}, 13), ({"num_classes": 14}, 14), ({"pooling": "3x3"}, 4)])
def test_cross_entropy_at_zero_logits_is_the_logarithm_of_the_classes_for_each_axis(make_run, fields, classes):
    """3.89182 for 7 classes, 5.12990 for 13, 5.27811 for 14."""
    run = make_run(JOINT, {"data.image_size": 14}, {"objectives.drloc": {"loss": "ce", **fields}})
    network = model.build(run, 10)
    for axis in network.objectives["drloc"].heads[0].axes:
        nn.init.zeros_(axis.weight)
    loss = network(batch_of(torch.randn(2, 3, 14, 14)), torch.zeros(()))[1]["drloc"]
    assert loss.item() == pytest.approx(2 * math.log(classes), abs=1e-5)


def test_cycle_back_of_uniform_logits():
    """The mean of 0 ... 6 is 3, the variance 4; squared errors over all pairs average 5, from the histogram."""
    classes_Bm2 = drloc.offsets(all_pairs(7), signed=False)
    squared = sum(n * (3 - d) ** 2 for d, n in enumerate([7, 12, 10, 8, 6, 4, 2])) / 49
    loss = drloc.cycle_back_loss(torch.zeros(*classes_Bm2.shape, 7), classes_Bm2).item()
    assert loss == pytest.approx(2 * (squared / 4 + 0.001 * math.log(4)), rel=1e-5)


@pytest.mark.parametrize(
    ("dim", "params", "macs"), [(384, 657_410, 42_008_576), (768, 1_050_626, 67_174_400), (2048, 2_361_346, 151_060_480)]
)
def test_mlp_has_the_known_size(dim, params, macs):
    with torch.device("meta"):
        assert sum(p.numel() for p in drloc.Head(dim, 512, None).parameters()) == params
    counted = FlopCountAnalysis(drloc.Head(dim, 512, None), torch.zeros(1, 64, 2 * dim)).unsupported_ops_warnings(False)
    assert counted.total() == macs


# ---------------------------------------------------------------------------------------------------------- slow loops


def slow_loss(network, cfg, images_BCHW, places_Bm22) -> float:
    """Image by image, pair by pair."""
    head, backbone = network.objectives["drloc"].heads[0], network.backbone
    losses = []
    for b, image_CHW in enumerate(images_BCHW):
        last = len(backbone.widths) - 1
        features = backbone(backbone.embed(image_CHW[None]), out_indices=(last,))
        tokens_ND = features.intermediates[last].tokens_BND[0] if cfg.features == "raw" else features.tokens_BND[0]
        rows, columns = features.grid
        if cfg.pooling != "none":
            tokens_ND = slow_pool(tokens_ND.T.unflatten(1, (rows, columns)), cfg.pooling)
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        for (i, j), (p, h) in places_Bm22[b].tolist():
            out = head(torch.cat([tokens_ND[i * columns + j], tokens_ND[p * columns + h]])[None, None])[0, 0]
            difference = [i - p, j - h] if cfg.signed else [abs(i - p), abs(j - h)]
            losses.append(slow_pair(cfg, out, difference, (rows, columns)))
    return torch.stack(losses).mean().item()


def slow_pair(cfg, out, difference, grid):
    side = max(grid)
    if cfg.loss == "l1":
        scale = grid if cfg.target == "normalized" else (1, 1)
        total = sum(abs(out[a] - difference[a] / scale[a]) for a in (0, 1))
        return total if cfg.reduction == "sum" else total / 2
    total = 0
    for a in (0, 1):
        target = difference[a] + (side - 1 if cfg.signed else 0)
        shares = out[a].exp() / out[a].exp().sum()
        if cfg.loss == "ce":
            total = total - shares[target].log()
            continue
        mean = sum(value * share for value, share in enumerate(shares))
        variance = sum((value - mean) ** 2 * share for value, share in enumerate(shares))
        log_variance = torch.log(variance + 1e-8)
        total = total + torch.exp(-log_variance) * (mean - target) ** 2 + 0.001 * log_variance
    return total


VARIANTS = {
    "paper": {},
    "code": {"target": "raw", "reduction": "mean", "features": "normed"},
    "signed": {"signed": True},
    "2x2": {"pooling": "2x2"},
    "3x3": {"pooling": "3x3", "target": "raw"},
    "ce": {"loss": "ce"},
    "ce_signed": {"loss": "ce", "signed": True, "num_classes": 9},
    "cbr": {"loss": "cbr", "pooling": "3x3"},
    "cbr_signed": {"loss": "cbr", "signed": True},
}


@pytest.mark.parametrize("size_px", [(8, 8), (8, 16), (24, 8)], ids=["square", "wide", "high"])
@pytest.mark.parametrize("name", VARIANTS)
def test_loss_equals_the_slow_loop_and_every_parameter_gets_a_gradient(make_run, drawn, name, size_px):
    classes = {} if size_px == (8, 8) or VARIANTS[name].get("loss", "l1") == "l1" else {"num_classes": 23}  # of the longer side
    run = make_run(JOINT, {"objectives.drloc": VARIANTS[name] | classes})
    network = model.build(run, 10)
    images_BCHW = torch.randn(3, 3, *size_px)
    total, terms, _ = network(batch_of(images_BCHW), torch.zeros(()))
    assert terms["drloc"].item() == pytest.approx(slow_loss(network, run.objectives.drloc, images_BCHW, drawn[0]), rel=1e-4)
    total.backward()
    assert not [name for name, p in network.named_parameters() if p.grad is None or p.grad.abs().max() == 0]


@pytest.mark.parametrize("name", ["paper", "ce", "cbr"])
def test_loss_is_the_mean_over_images(make_run, monkeypatch, name):
    """So ranks and accumulated slices average to the global batch."""
    network = model.build(make_run(JOINT, {"objectives.drloc": VARIANTS[name]}), 10).eval()
    images_BCHW, places_Bm22 = torch.randn(4, 3, 8, 8), drloc.draw_pairs(4, (2, 2), 5, torch.device("cpu"))

    def loss(rows: slice) -> float:
        monkeypatch.setattr(drloc, "draw_pairs", lambda *args: places_Bm22[rows])
        return network(batch_of(images_BCHW[rows]), torch.zeros(()))[1]["drloc"].item()

    assert (loss(slice(0, 2)) + loss(slice(2, 4))) / 2 == pytest.approx(loss(slice(0, 4)), rel=1e-5)


def test_the_head_learns_the_offsets_from_places(make_run):
    """Embeddings that carry their row and column: the loss falls below the best constant's 66/49 by far."""
    torch.manual_seed(0)
    head = drloc.Head(2, 64, None)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    grid_BND = torch.cartesian_prod(torch.arange(7.0), torch.arange(7.0))[None].expand(16, -1, -1)
    for _ in range(300):
        places_Bm22 = drloc.draw_pairs(16, (7, 7), 64, torch.device("cpu"))
        loss = drloc.regression_loss(head(drloc.gather_pairs(grid_BND, places_Bm22, 7)), drloc.offsets(places_Bm22, False), "mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


# -------------------------------------------------------------------------------------------------------------- weight


def test_weight_rises_and_falls_as_the_codes(make_run):
    """Weight 0.5, warm-up 20, end 300, of which 101 epochs are trained."""
    fields = {"objectives.drloc": {"weight": 0.5, "warmup_epochs": 20, "end_epoch": 300}}
    run = make_run(JOINT, fields, {"loop": {"epochs": 101, "schedule_epochs": 300}})
    objective = model.build(run, 10).objectives["drloc"]
    expected = {0: 0, 1: 0.025, 5: 0.125, 10: 0.25, 20: 0.5, 50: 0.4464, 99: 0.3589, 100: 0.3571, 300: 0}
    for epoch, weight in expected.items():
        assert objective.weight("drloc", torch.tensor(epoch / 300)).item() == pytest.approx(weight, abs=5e-5)
    assert objective.weight("drloc", torch.tensor(10.5 / 300)).item() == pytest.approx(0.2625, abs=1e-5)


def test_weight_without_a_schedule_is_constant_and_either_half_works_alone(make_run):
    def weight(progress: float, **fields) -> float:
        objective = model.build(make_run(JOINT, {"objectives.drloc": {"weight": 0.2, **fields}, "loop.epochs": 10}), 10).objectives["drloc"]
        return float(objective.weight("drloc", torch.tensor(progress)))

    assert weight(0.0) == weight(1.0) == 0.2
    assert [round(weight(p, warmup_epochs=5), 4) for p in (0.0, 0.25, 0.5, 1.0)] == [0, 0.1, 0.2, 0.2]
    assert [round(weight(p, end_epoch=5), 4) for p in (0.0, 0.25, 0.5, 1.0)] == [0.2, 0.1, 0, 0]


def test_total_is_classification_plus_the_weighted_loss(make_run):
    network = model.build(make_run(JOINT, {"objectives.drloc.weight": 0.1}), 10)
    total, terms, weighted = network(batch_of(torch.randn(4, 3, 8, 8)), torch.zeros(()))
    assert weighted["drloc"].item() == pytest.approx(0.1 * terms["drloc"].item())
    assert total.item() == pytest.approx(terms["classify"].item() + 0.1 * terms["drloc"].item(), rel=1e-6)
