"""NT-Xent against a slow loop from the paper, closed forms, and one global batch however many ranks hold it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from vitssl import model
from vitssl.config import ConfigError
from vitssl.costs import cost
from vitssl.data.loading.batch import Batch
from vitssl.objectives.losses import Gathered, nt_xent

TINY = {"hidden_dim": 16, "out_dim": 8}
# tried with every backbone; what a name ends in is what it requires: /cls, /drop or /mask
PAIRS = {
    "simclr/cls": {"simclr": TINY},
    "simclr/mean": {"simclr": TINY | {"pool": "mean", "layers": 3, "last_batch_norm": True}},
}
# layers of the Run whose loss curve is in tests/golden
CURVE = {
    "objectives": {"classify": {"weight": 0.1}, "simclr": TINY | {"weight": 0.9}},
    "data.views.second": {"scale": [0.5, 1.0]},
}
OVER_RANKS = {}  # fields with which two ranks are to train as one process does, as its loss is over the whole batch
SIMCLR = {"objectives.simclr": {"hidden_dim": 16, "out_dim": 8}, "data.views.second": {"scale": [0.5, 1.0]}}
JOINT = {**SIMCLR, "objectives.classify": {"weight": 0.1}, "objectives.simclr.weight": 0.9}


def batch_of(B: int = 4) -> Batch:
    views = {"main": torch.randn(B, 3, 8, 8), "second": torch.randn(B, 3, 8, 8)}
    return Batch(views, {name: torch.arange(B) for name in views}, torch.arange(B), float(B))


def slow_loss(rows_RD: torch.Tensor, temperature: float) -> torch.Tensor:
    """Eq. 1 of the paper for every ordered pair of views, then the mean; rows: all first views, then all second ones."""
    R, losses = len(rows_RD), []

    def similar(i, j):
        return torch.exp(torch.dot(rows_RD[i], rows_RD[j]) / (rows_RD[i].norm() * rows_RD[j].norm()) / temperature)

    for i in range(R):
        j = i + R // 2 if i < R // 2 else i - R // 2
        losses.append(-torch.log(similar(i, j) / sum(similar(i, k) for k in range(R) if k != i)))
    return sum(losses) / R


def alone(rows_RD):
    """The rows of a single rank, of different images."""
    return Gathered(rows_RD, torch.arange(len(rows_RD) // 2).repeat(2), 0)


def test_loss_and_gradient_equal_the_slow_loop():
    rows_RD = torch.randn(10, 6, dtype=torch.float64)
    fast, slow = (rows_RD.float().requires_grad_() for _ in range(2))
    unit_RD = F.normalize(fast, dim=1)
    got, expected = nt_xent(unit_RD, alone(unit_RD), 0.3), slow_loss(slow, 0.3)
    got.backward()
    expected.backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("B", [4, 72])
def test_identical_embeddings_leave_a_guess_among_all_others(B):
    unit_RD = F.normalize(torch.ones(2 * B, 5), dim=1)
    assert nt_xent(unit_RD, alone(unit_RD), 0.5).item() == pytest.approx(math.log(2 * B - 1), abs=1e-5)


def test_no_temperature_overflows():
    unit_RD = F.normalize(torch.randn(8, 5), dim=1).requires_grad_()
    loss = nt_xent(unit_RD, alone(unit_RD), 1e-4)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(unit_RD.grad).all()


def test_the_rows_of_two_ranks_average_to_the_whole_batch():
    """Rank r holds images 2r and 2r + 1; the others' rows come between its own and their partners."""
    views_VBD = F.normalize(torch.randn(2, 4, 5), dim=-1)
    ranks = [views_VBD[:, 2 * r : 2 * r + 2].flatten(0, 1) for r in (0, 1)]
    images_S = torch.tensor([0, 1, 0, 1, 2, 3, 2, 3])
    losses = [nt_xent(ranks[r], Gathered(torch.cat(ranks), images_S, 4 * r), 0.2) for r in (0, 1)]
    assert torch.stack(losses).mean().item() == pytest.approx(slow_loss(views_VBD.flatten(0, 1), 0.2).item(), rel=1e-5)


def test_an_image_that_is_there_twice_is_no_negative_of_itself():
    """With data.repeats, or where epochs meet: of images 0, 1, 0 each of the outer two has a partner and image 1's two rows."""
    rows_RD = F.normalize(torch.randn(6, 5), dim=1)
    got = nt_xent(rows_RD, Gathered(rows_RD, torch.tensor([0, 1, 0, 0, 1, 0]), 0), 0.2)
    counted = {0: [3, 1, 4], 1: [4, 0, 2, 3, 5], 2: [5, 1, 4]} | {3: [0, 1, 4], 4: [1, 0, 2, 3, 5], 5: [2, 1, 4]}  # the partner first
    logits_RR = rows_RD @ rows_RD.T / 0.2
    expected = [torch.logsumexp(logits_RR[i, columns], 0) - logits_RR[i, columns[0]] for i, columns in counted.items()]
    torch.testing.assert_close(got, torch.stack(expected).mean())


def test_googles_head(make_run):
    """Three layers of the backbone's width; a batch norm after the last too, which centres and scales, and has no bias."""
    google = {"hidden_dim": 32, "out_dim": 8, "layers": 3, "last_batch_norm": True}
    head = model.build(make_run(SIMCLR, {"objectives.simclr": google}), 10).objectives["simclr"].head.train()
    layers = 2 * (32 * 32 + 2 * 32) + 32 * 8 + 8
    assert sum(p.numel() for p in head.parameters()) == layers
    torch.nn.init.constant_(head[-1].weight, 3.0)
    projected = head(torch.randn(64, 32))
    torch.testing.assert_close(projected.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(projected.std(0, correction=0), torch.full((8,), 3.0), atol=1e-2, rtol=0)


def test_the_objective_compares_normalised_projections(make_run):
    """And the batch norm sees one view at a time."""
    network = model.build(make_run(SIMCLR), 10).train()
    batch = batch_of()
    _, terms, _ = network(batch, torch.zeros(()))
    features = [network.backbone(network.backbone.embed(batch.views[name])).prefix_BPD[:, 0] for name in ("main", "second")]
    rows_RD = torch.cat([network.objectives["simclr"].head(view_BD) for view_BD in features])
    assert terms["simclr"].item() == pytest.approx(slow_loss(rows_RD, 0.1).item(), rel=1e-4)


def test_two_copies_of_one_view_serve_as_well(make_run):
    run = make_run({"objectives.simclr": {"second": "main"}, "data.views.main.count": 2})
    two = model.build(make_run({"objectives.simclr": {}, "data.views.second": {}}), 10)
    one = model.build(run, 10)
    batch = batch_of()
    stacked = Batch({"main": torch.cat([*batch.views.values()])}, {"main": torch.zeros(8)}, batch.index_B, 4.0)
    assert one(stacked, torch.zeros(()))[0].item() == pytest.approx(two(batch, torch.zeros(()))[0].item(), rel=1e-6)


def test_head_shapes(make_run):
    run = make_run({"objectives.simclr": {"layers": 3}, "data.views.second": {}})
    linears = [part for part in model.build(run, 10).objectives["simclr"].head if isinstance(part, torch.nn.Linear)]
    assert [tuple(part.weight.shape) for part in linears] == [(2048, 32), (2048, 2048), (128, 2048)]
    assert [part.bias is None for part in linears] == [True, True, False], "a batch norm stands in the place of the bias"


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        ({"data.views.second": None}, "data.views.second"),
        ({"data.views.second.count": 2}, "must be 1"),
        ({"objectives.simclr.second": "main"}, "must be 2"),
        ({"loop.micro_batch_size": 8}, "micro_batch_size"),
        ({"objectives.simclr.temperature": 0}, "temperature"),
    ],
)
def test_what_cannot_be_compared_is_refused(make_run, layers, word):
    with pytest.raises(ConfigError, match=word):
        make_run(SIMCLR, layers)


def test_every_parameter_gets_a_gradient_jointly_in_bfloat16_and_by_the_mean_token(make_run):
    network = model.build(make_run(JOINT, {"objectives.simclr.pool": "mean"}), 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, terms, weighted = network(batch_of(), torch.zeros(()))
    total.backward()
    assert not [name for name, p in network.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert weighted["simclr"].item() == pytest.approx(0.9 * terms["simclr"].item()) and terms["simclr"].dtype == torch.float32


def test_compiled_it_is_one_graph(make_run):
    network, counter = model.build(make_run(JOINT), 10), CompileCounter()
    compiled = torch.compile(network, backend=counter)
    for step in range(3):
        compiled(batch_of(), torch.tensor(step / 3))[0].backward()
    assert counter.frame_count == 1


def test_cost_of_a_step_and_of_inference(make_run):
    """Two backbone passes and two projections a step; the head is left out of inference."""
    simclr, classify = (cost.measure(make_run(layers), 10) for layers in (SIMCLR, {"objectives.classify": {}}))
    assert simclr["params_inference"] == classify["params_inference"] - 330
    heads = 2 * (32 * 16 + 16 * 8)
    assert simclr["macs_train_forward"] == pytest.approx(2 * simclr["macs_inference"] + heads, rel=2e-3)
