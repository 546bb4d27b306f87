"""Groups, schedules, clipping and the moving average, by hand-counted values."""

from __future__ import annotations

import copy
import math
from typing import get_args

import pytest
import torch

from vitssl import config, model
from vitssl.checkpoints import run_checkpoint
from vitssl.config.base import hints_of
from vitssl.training import optim


def test_groups_decay_matrices_and_tokens_only(make_run):
    network = model.build(make_run({"objectives.mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}}), 10)
    groups = optim.param_groups(network, network.backbone, config.Optim())
    decayed = {id(p) for g in groups if g["decayed"] for p in g["params"]}
    for name, parameter in network.named_parameters():
        assert (id(parameter) in decayed) == (parameter.ndim >= 2), name
    excused = optim.param_groups(network, network.backbone, config.Optim(no_decay=["pos_embed", "token"]))
    names = {id(p): n for n, p in network.named_parameters()}
    kept = {names[id(p)] for g in excused if g["decayed"] for p in g["params"]}
    assert not {n for n in kept if "pos_embed" in n or "token" in n}
    assert sum(len(g["params"]) for g in groups) == len(list(network.parameters()))


def test_layer_decay_counts_from_the_head_down(make_run):
    """L = 2 blocks: scales d^3 (embedding), d^2, d^1 (second block), 1 (final norm, as in MAE's code, and head)."""
    network = model.build(make_run({"objectives.classify": {}}), 10)
    groups = optim.param_groups(network, network.backbone, config.Optim(layer_decay=0.5))
    names = {id(p): n for n, p in network.named_parameters()}
    scales = {names[id(p)]: g["lr_scale"] for g in groups for p in g["params"]}
    assert scales["backbone.cls_token"] == 0.125
    assert scales["backbone.blocks.0.attn.qkv.weight"] == 0.25
    assert scales["backbone.blocks.1.attn.qkv.weight"] == 0.5
    assert scales["backbone.norm.weight"] == scales["objectives.classify.head.weight"] == 1.0


def test_named_vectors_may_be_decayed_too(make_run):
    network = model.build(make_run({"objectives.classify": {}}), 10)
    groups = optim.param_groups(network, network.backbone, config.Optim(decay=[r"norm1\.", "norm2.*bias"], no_decay=["blocks.0.*bias"]))
    names = {id(p): n for n, p in network.named_parameters()}
    decayed = {names[id(p)] for g in groups if g["decayed"] for p in g["params"] if p.ndim == 1}
    assert decayed == {f"backbone.blocks.{name}" for name in ("0.norm1.weight", "1.norm1.weight", "1.norm1.bias", "1.norm2.bias")}


def test_a_pattern_that_names_nothing_is_a_mistake(make_run):
    network = model.build(make_run({"objectives.classify": {}}), 10)
    with pytest.raises(config.ConfigError, match=r"optim\.decay: 'nrom' is in the name of no parameter"):
        optim.param_groups(network, network.backbone, config.Optim(decay=["nrom"]))


def test_nesterov_looks_ahead(make_run):
    """v <- m v + g; a step of g + m v, where plain momentum steps by v (Sutskever et al. 2013, as torch has it)."""
    network = model.build(make_run({"objectives.classify": {}}), 10)
    cfg = config.Optim(name="sgd", nesterov=True, momentum=0.9, weight_decay=0.0)
    optimizer, head = optim.make(network, network.backbone, cfg), network.objectives["classify"].head.bias
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    before, velocity, expected = head.detach().clone(), 0.0, 0.0
    for gradient in (1.0, 2.0):
        head.grad = torch.full_like(head, gradient)
        optimizer.step()
        velocity = 0.9 * velocity + gradient
        expected += 0.1 * (gradient + 0.9 * velocity)
    torch.testing.assert_close(before - head.detach(), torch.full_like(head, expected))


def test_a_frozen_backbone_is_not_optimised(make_run):
    network = model.build(make_run({"objectives.classify": {}, "backbone.frozen": True}), 10)
    groups = optim.param_groups(network, network.backbone, config.Optim())
    assert sum(p.numel() for g in groups for p in g["params"]) == 32 * 10 + 10
    assert not network.train().backbone.training


def schedule(make_run, **fields) -> optim.Schedule:
    layers = {"loop": {"epochs": 10, "warmup_epochs": 2, "schedule_epochs": fields.pop("horizon", None)}, "objectives.classify": {}}
    return optim.Schedule(make_run(layers, {"optim": {"lr": 1.0, "min_lr": 0.0, "weight_decay": 0.1} | fields}), steps_per_epoch=10)


def test_warm_up_then_cosine(make_run):
    s = schedule(make_run)
    assert [s.lr(step) for step in (0, 10, 20)] == [0.0, 0.5, 1.0]
    assert s.lr(60) == pytest.approx(0.5)
    assert s.lr(100) == pytest.approx(0.0)
    assert s.lr(40) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_it_may_fall_along_a_line_or_not_at_all(make_run):
    line = schedule(make_run, schedule="linear", min_lr=0.2, lr_rule="none")
    assert [line.lr(step) for step in (0, 10, 20, 40, 60, 100, 300)] == pytest.approx([0.0, 0.5, 1.0, 0.8, 0.6, 0.2, 0.2])
    constant = schedule(make_run, schedule="constant", lr_rule="none", min_lr=1e-6, weight_decay_end=0.3)
    assert [constant.lr(step) for step in (0, 10, 20, 99, 300)] == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert constant.weight_decay(100) == pytest.approx(0.3)  # which has its own


def test_every_schedule_that_can_be_asked_for_is_there():
    assert get_args(hints_of(config.Optim)["schedule"]) == tuple(optim.SHAPES)


def test_a_longer_horizon_leaves_the_rate_high(make_run):
    """Drloc's public code trains 101 of 300 epochs: at epoch 100 the cosine stands at 75 %."""
    run = make_run(
        {
            "objectives.classify": {},
            "loop": {"epochs": 101, "schedule_epochs": 300, "warmup_epochs": 0},
            "optim": {"lr": 1.0, "min_lr": 0.0},
        }
    )
    assert optim.Schedule(run, steps_per_epoch=1).lr(100) == pytest.approx(0.75)


def test_the_cosine_may_begin_with_the_warm_up(make_run):
    """Drloc's published log, 20 epochs of warm-up: 9.406e-5 at epoch 100 for a batch of 128."""
    rates = {"lr": 5e-4, "min_lr": 5e-6, "warmup_lr": 5e-7, "lr_rule": "batch/512", "scale_all_lrs": True, "batch_size": 128}
    loop = {"epochs": 101, "schedule_epochs": 300, "warmup_epochs": 20, "warmup_prefix": False}
    s = optim.Schedule(make_run({"objectives.classify": {}, "loop": loop, "optim": rates}), steps_per_epoch=1)
    assert s.lr(100) == pytest.approx(9.406e-5, abs=1e-8)
    assert (s.lr(0), s.lr(10)) == pytest.approx((1.25e-7, (1.25e-4 + 1.25e-7) / 2))


def test_scaling_may_include_the_low_ends(make_run):
    rule = {"lr_rule": "batch/512", "batch_size": 1024, "warmup_lr": 1e-3, "min_lr": 1e-4}
    plain, scaled = schedule(make_run, **rule), schedule(make_run, **rule, scale_all_lrs=True)
    assert (plain.peak_lr, plain.warmup_lr, plain.min_lr) == (2.0, 1e-3, 1e-4)
    assert (scaled.peak_lr, scaled.warmup_lr, scaled.min_lr) == (2.0, 2e-3, 2e-4)


def test_weight_decay_cosine(make_run):
    s = schedule(make_run, weight_decay=0.04, weight_decay_end=0.4)
    assert [round(s.weight_decay(step), 6) for step in (0, 50, 100)] == [0.04, 0.22, 0.4]
    assert schedule(make_run).weight_decay(77) == pytest.approx(0.1)


def test_apply_sets_every_group(make_run):
    network = model.build(make_run({"objectives.classify": {}}), 10)
    cfg = config.Optim(layer_decay=0.5)
    optimizer = optim.make(network, network.backbone, cfg)
    schedule(make_run).apply(optimizer, 20)
    assert {(g["lr"], g["weight_decay"]) for g in optimizer.param_groups} == {(x, w) for x in (0.125, 0.25, 0.5, 1.0) for w in (0.0, 0.1)}


@pytest.mark.parametrize("how", ["none", "global", "tensor"])
def test_clipping_equals_a_loop(how):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    for p in network.parameters():
        p.grad = torch.randn_like(p)
    before = [p.grad.clone() for p in network.parameters()]
    total = math.sqrt(sum(float(g.square().sum()) for g in before))
    got = optim.clip_gradients(network.parameters(), config.Optim(clip=how, clip_norm=1.0))
    assert got.item() == pytest.approx(total, rel=1e-5)
    for p, g in zip(network.parameters(), before, strict=True):
        norm = {"none": 0.0, "global": total, "tensor": float(g.norm())}[how]
        assert torch.allclose(p.grad, g / max(norm, 1.0), atol=1e-4)


def test_a_step_whose_scaled_gradients_overflow_is_left_out():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.AdamW([weight], lr=0.1, fused=True), optim.loss_scaler(torch.device("cpu"), "fp16")

    def step(factor: float) -> tuple[float, float]:
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        norm = optim.without_overflow(optim.clip_gradients([weight], config.Optim(clip="global")), scaler)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return norm.item(), scaler.get_scale()

    assert step(3e38) == (0, 2.0**15) and weight.tolist() == [1, 1]
    assert step(3) == (pytest.approx(math.sqrt(18)), 2.0**15) and weight[0] < 1
    kept = weight.tolist()
    scaler.load_state_dict(scaler.state_dict() | {"scale": 1.0})
    norm, scale = step(math.inf)
    assert math.isnan(norm) or math.isinf(norm), "no scale is to blame"
    assert scale == 0.5 and weight.tolist() == kept


def test_without_fp16_no_loss_is_scaled():
    scaler = optim.loss_scaler(torch.device("cpu"), "bf16")
    assert scaler.scale(torch.tensor(3.0)) == 3 and scaler.state_dict() == {}
    assert math.isinf(optim.without_overflow(torch.tensor(math.inf), scaler))


def test_moving_average_of_a_sequence():
    network = torch.nn.BatchNorm1d(1)
    ema = optim.Ema(network, 0.9)
    value = 1.0
    for target in (2.0, 3.0):
        torch.nn.init.constant_(network.weight, target)
        network.num_batches_tracked += 1
        ema.update()
        value = 0.9 * value + 0.1 * target
    assert ema.average["weight"].item() == pytest.approx(value)
    assert ema.average["num_batches_tracked"] == 2
    going_on = optim.Ema(network, 0.5)
    going_on.load(ema.average)
    going_on.update()
    assert going_on.average["weight"].item() == pytest.approx(0.5 * value + 0.5 * 3.0)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_one_step_equals_the_textbook(make_run, name):
    network = torch.nn.Linear(2, 1, bias=False)
    network.num_layers, network.layer_id = 0, lambda n: 0
    optimizer = optim.make(network, network, config.Optim(name=name, momentum=0.9))
    w, g = network.weight.detach().clone(), torch.tensor([[1.0, -2.0]])
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 0.1, 0.01
    network.weight.grad = g.clone()
    optimizer.step()
    adamw = w * (1 - 0.1 * 0.01) - 0.1 * g / (g.abs() + 1e-8)
    sgd = w - 0.1 * (g + 0.01 * w)
    assert torch.allclose(network.weight, adamw if name == "adamw" else sgd, atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_of_sgd_equals_the_textbook_where_a_gradient_comes_late(nesterov):
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    network.num_layers, network.layer_id = 0, lambda n: 0
    optimizer = optim.make(network, network, config.Optim(name="sgd", momentum=0.9, nesterov=nesterov))
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    expected = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in expected.items()}
    for step in range(4):
        for name, parameter in network.named_parameters():
            parameter.grad = torch.randn_like(parameter) if name.startswith("0") or step > 1 else None
            if parameter.grad is not None:
                velocity[name] = 0.9 * velocity[name] + parameter.grad
                expected[name] -= 0.1 * (parameter.grad + 0.9 * velocity[name] if nesterov else velocity[name])
        optimizer.step()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name])


def test_sgd_goes_on_fused_from_a_checkpoint_in_which_it_was_not(tmp_path):
    """As earlier versions saved it, with nothing for a weight that had no gradient yet."""

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        network.num_layers, network.layer_id = 0, lambda n: 0
        return network, optim.make(network, network, config.Optim(name="sgd", momentum=0.9))

    (earlier, _), (network, optimizer) = made(), made()
    groups = [group | {"lr": 0.1} for group in optim.param_groups(earlier, earlier, config.Optim())]
    before = torch.optim.SGD(groups, momentum=0.9, foreach=True)
    for parameter in earlier[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    before.step()
    network.load_state_dict(earlier.state_dict())
    run_checkpoint.load_optimizer(optimizer, copy.deepcopy(before.state_dict()), tmp_path)
    assert all(group["fused"] and not group["foreach"] for group in optimizer.param_groups)
    for one, other in zip(earlier.parameters(), network.parameters(), strict=True):
        one.grad = torch.ones_like(one)
        other.grad = torch.ones_like(other)
    before.step()
    optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(0.0)
    optimizer.step()
    for one, other in zip(earlier.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_step_that_overflowed_in_fp16_is_skipped_on_the_device(name):
    """torch's GradScaler else waits for the GPU at every step, to know whether to skip it."""
    network = torch.nn.Linear(2, 1)
    network.num_layers, network.layer_id = 0, lambda n: 0
    optimizer, before = optim.make(network, network, config.Optim(name=name)), network.weight.detach().clone()
    assert optimizer._step_supports_amp_scaling
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for overflowed in (1.0, 0.0):
        network.weight.grad, network.bias.grad = torch.ones(1, 2), torch.ones(1)
        optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(overflowed)
        optimizer.step()
        assert torch.equal(network.weight, before) == bool(overflowed)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lars_scales_the_rate_of_matrices_by_their_norm_over_the_gradients(weight_decay):
    """Two steps by hand; biases go without scale and decay."""
    network = torch.nn.Linear(3, 2)
    backbone = type("Backbone", (), {"num_layers": 1})
    cfg = config.Optim(name="lars", momentum=0.9, weight_decay=weight_decay)
    optimizer = optim.make(network, backbone, cfg)
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 0.5, weight_decay if group["decayed"] else 0.0
    weight, bias = network.weight.detach().clone(), network.bias.detach().clone()
    speed_w, speed_b = torch.zeros_like(weight), torch.zeros_like(bias)
    for _ in range(2):
        gradient_w, gradient_b = torch.randn(2, 3), torch.randn(2)
        network.weight.grad, network.bias.grad = gradient_w.clone(), gradient_b.clone()
        optimizer.step()
        ratio = 1e-3 * weight.norm() / (gradient_w.norm() + weight_decay * weight.norm())
        speed_w = 0.9 * speed_w + ratio * (gradient_w + weight_decay * weight)
        speed_b = 0.9 * speed_b + gradient_b
        weight, bias = weight - 0.5 * speed_w, bias - 0.5 * speed_b
    torch.testing.assert_close(network.weight.data, weight)
    torch.testing.assert_close(network.bias.data, bias)
