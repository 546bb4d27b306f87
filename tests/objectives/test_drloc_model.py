"""Drloc within a Model: shared passes, features, precision, cost, Swin's scales, refusals."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from tests.objectives.conftest import batch_of
from tests.objectives.test_drloc import JOINT, VARIANTS
from vitssl import config, model
from vitssl.backbones.base import Features
from vitssl.costs import cost
from vitssl.objectives import drloc


@pytest.mark.parametrize("features", ["raw", "normed"])
def test_classify_and_drloc_share_one_pass(make_run, features):
    network = model.build(make_run(JOINT, {"objectives.drloc.features": features}), 10)
    passes = []
    network.backbone.register_forward_hook(lambda *a: passes.append("pass"))
    network(batch_of(torch.randn(2, 3, 8, 8)), torch.zeros(()))
    assert passes == ["pass"]


def test_prefix_and_extra_tokens_are_left_out(make_run):
    run = make_run(JOINT)
    network = model.build(run, 10)
    unseen = torch.full((2, 1, 32), math.nan)
    features = Features(unseen, torch.randn(2, 16, 32), unseen, (4, 4))
    features.intermediates = {1: dataclasses.replace(features)}
    batch = batch_of(torch.zeros(2, 3, 8, 8))
    step = network.step(batch)
    step.encode = lambda view: features
    assert torch.isfinite(network.objectives["drloc"](step, batch, torch.zeros(()))["drloc"])


def test_raw_features_are_those_before_the_final_norm(make_run, drawn):
    """A final norm that gives zeros changes the loss of normed features only."""
    for features, changes in (("raw", False), ("normed", True)):
        network = model.build(make_run(JOINT, {"objectives.drloc.features": features}), 10)
        losses = []
        for scale in (1.0, 0.0):
            nn.init.constant_(network.backbone.norm.weight, scale)
            torch.manual_seed(1)
            batch = batch_of(torch.linspace(-1, 1, 3 * 2 * 64).reshape(2, 3, 8, 8))
            losses.append(network(batch, torch.zeros(()))[1]["drloc"].item())
        assert (losses[0] != losses[1]) == changes


@pytest.mark.parametrize("name", ["paper", "cbr"])
def test_compiled_training_is_one_graph_whatever_the_progress(make_run, name):
    schedule = {"warmup_epochs": 1, "end_epoch": 2}
    network = model.build(make_run(JOINT, {"objectives.drloc": {**VARIANTS[name], **schedule}}), 10).train()
    counter = CompileCounter()
    compiled = torch.compile(network, backend=counter)
    for i in range(3):
        compiled(batch_of(torch.randn(4, 3, 8, 8)), torch.tensor(i / 3))[0].backward()
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", VARIANTS)
def test_bf16_gives_about_the_same_loss_in_float32(make_run, name):
    network = model.build(make_run(JOINT, {"objectives.drloc": VARIANTS[name]}), 10)
    batch, losses = batch_of(torch.randn(8, 3, 8, 8)), []
    for enabled in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            total, terms, _ = network(batch, torch.zeros(()))
        total.backward()
        assert terms["drloc"].dtype == torch.float32
        losses.append(terms["drloc"].item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_the_cost_is_the_mlps(make_run):
    joint, alone = (cost.measure(make_run(layer), 10) for layer in (JOINT, {"objectives.classify": {}}))
    mlp = 5 * (64 * 16 + 16 * 16 + 16 * 2)
    assert joint["macs_train_forward"] - alone["macs_train_forward"] == mlp
    assert joint["macs_passes"] == {"classify": alone["macs_train_forward"], "drloc": mlp}
    assert joint["params_inference"] == alone["params_inference"] and joint["macs_inference"] == alone["macs_inference"]


# --------------------------------------------------------------------------------------------------------------- Swin

SWIN = {"name": "swin_pico", "patch_size": 2, "embed_dim": 8, "depth": None, "depths": [1, 1, 1], "num_heads": 1, "window_size": 4}


class StagedFeatures:
    """The step of a backbone with stages of 16 x 16, 8 x 8 and 4 x 4 tokens."""

    def __init__(self, widths):
        maps = [torch.randn(2, width, 16 >> i, 16 >> i, requires_grad=True) for i, width in enumerate(widths)]
        self.maps, self.stages = maps, {i: Features.of_map(map_BDHW) for i, map_BDHW in enumerate(maps)}

    def encode(self, view):
        last = self.stages[2]
        return Features(last.prefix_BPD, last.tokens_BND, last.extra_BJD, last.grid, self.stages)


class StagedBackbone:
    widths, strides = (8, 16, 32), (2, 4, 8)

    def grid(self, size_px, index):
        return size_px // self.strides[index], size_px // self.strides[index]


@pytest.mark.parametrize(("loss", "outputs"), [("l1", [2, 2, 2]), ("ce", [16, 8, 4])])
def test_multi_scale_has_a_head_for_every_stage(make_run, drawn, loss, outputs):
    run = make_run(JOINT, {"objectives.classify.pool": "mean"}, {"data.image_size": 32, "backbone": SWIN})
    run.objectives.drloc.multi_scale, run.objectives.drloc.loss = True, loss
    config.check(run)
    objective, step = drloc.Drloc(run.objectives.drloc, run, StagedBackbone(), 10), StagedFeatures((8, 16, 32))
    assert objective.out_indices == (0, 1, 2)
    sizes = [head.mlp[-1].out_features if head.axes is None else head.axes[0].out_features for head in objective.heads]
    assert sizes == outputs and [head.mlp[0].in_features for head in objective.heads] == [16, 32, 64]
    terms = objective(step, batch_of(torch.zeros(2, 3, 32, 32)), torch.zeros(()))
    assert list(terms) == ["drloc_stage0", "drloc_stage1", "drloc_stage2"]
    assert [places.max().item() < side for places, side in zip(drawn, (16, 8, 4), strict=True)] == [True] * 3
    sum(terms.values()).backward()
    assert all(map_BDHW.grad.abs().max() > 0 for map_BDHW in step.maps)


def test_multi_scale_on_swin_takes_a_step(make_run):
    fields = {"data.image_size": 32, "backbone": SWIN, "objectives.classify.pool": "mean", "objectives.drloc.multi_scale": True}
    network = model.build(make_run(JOINT, fields), 10)
    total, terms, _ = network(batch_of(torch.randn(2, 3, 32, 32)), torch.zeros(()))
    total.backward()
    assert len(terms) == 4
    assert not [name for name, p in network.named_parameters() if p.grad is None or p.grad.abs().max() == 0]


def test_swin_t_has_the_published_number_of_parameters(make_run):
    """The first line of the authors' log: 28,577,670."""
    objectives = {"classify": {"pool": "mean"}, "drloc": {}}
    run = config.merge(config.Run, {"data.shards": "x", "backbone.name": "swin_tiny", "objectives": objectives})
    config.check(run)
    assert sum(p.numel() for p in model.build(run, 10).parameters()) == 28_577_670


# -------------------------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"objectives.drloc.multi_scale": True}, "multi_scale: vit_pico has one stage only"),
        ({"backbone.patch_size": 8}, "a grid of one token has no pairs"),
        ({"backbone.patch_size": 4, "objectives.drloc.pooling": "2x2"}, "a grid of one token has no pairs"),
        ({"data.image_size": 6, "objectives.drloc.pooling": "2x2"}, "2x2 does not divide the 3 x 3 tokens"),
        ({"objectives.drloc.loss": "ce", "objectives.drloc.num_classes": 3}, "num_classes: 3 is less than the 4 offsets"),
        ({"objectives.drloc": {"warmup_epochs": 20, "end_epoch": 10}}, "end_epoch: 10 is not after warmup_epochs=20"),
        ({"objectives.drloc.pairs": 0}, "pairs: 0 is less than 1"),
    ],
)
def test_impossible_runs_are_refused(make_run, fields, says):
    with pytest.raises(config.ConfigError, match=says):
        make_run(JOINT, fields)
