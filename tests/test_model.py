"""The Model: every parameter is trained, compiled code is one graph, building draws nothing from the global generator."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from vitssl import model
from vitssl.data.batch import Batch

MAE = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}
OBJECTIVES = {
    "classify": {"classify": {}},
    "mae": {"mae": MAE},
    "ssat": {"classify": {"weight": 0.1, "label_smoothing": 0.1}, "mae": MAE | {"weight": 0.9}},
}
BACKBONES = [{"backbone.positions": "sincos", "backbone.init": "xavier"}, {"backbone.positions": "learned"}]


def batch(B: int, labelled: float = 8.0) -> Batch:
    return Batch({"main": torch.randn(B, 3, 8, 8)}, {"main": torch.arange(B) % 10}, torch.arange(B), torch.tensor(labelled))


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_pair_takes_two_steps_and_every_parameter_gets_a_gradient_in_each(make_run, name, backbone):
    network = model.build(make_run({"objectives": OBJECTIVES[name]}, backbone), 10).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        total, terms, weighted = network(batch(8), torch.tensor(0.5))
        total.backward()
        assert torch.isfinite(total) and terms.keys() == weighted.keys()
        assert not [n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        optimizer.step()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_compiled_training_is_one_graph_whatever_the_progress(make_run, name):
    network = model.build(make_run({"objectives": OBJECTIVES[name]}), 10).train()
    counter = CompileCounter()
    compiled = torch.compile(network, backend=counter)
    for i in range(4):
        compiled(batch(8, labelled=float(i + 1)), torch.tensor(i / 4))[0].backward()
    assert counter.frame_count == 1


def test_building_depends_on_the_seed_alone(make_run):
    run = make_run({"objectives": OBJECTIVES["ssat"]})
    torch.manual_seed(3)
    expected_draw = torch.rand(1)
    torch.manual_seed(3)
    first = model.build(run, 10).state_dict()
    assert torch.equal(torch.rand(1), expected_draw)
    second = model.build(run, 10).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    other = model.build(make_run({"objectives": OBJECTIVES["ssat"], "seed": 1}), 10).state_dict()
    assert not torch.equal(first["backbone.blocks.0.attn.qkv.weight"], other["backbone.blocks.0.attn.qkv.weight"])


def test_a_step_s_masks_are_functions_of_the_seed_the_step_and_the_rank(make_run):
    network = model.build(make_run({"objectives": OBJECTIVES["mae"]}), 10)

    def mask(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        encode = model.StepEncode(network, batch(4))
        encode("main", keep="mae")
        return encode.selection("mae").mask_BN

    assert torch.equal(mask(1), mask(1)) and not torch.equal(mask(1), mask(2))
