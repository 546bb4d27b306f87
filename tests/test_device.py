"""The GPU's path on a machine without one: fake tensors on a fake GPU, which refuse to meet the host's and to be read back.

Fake tensors have a shape, a type and a device and no values. What they cannot show here is a backward pass, whose engine wants a driver.
"""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorDeviceMismatchError, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jobs.plan import smoke, sweep
from jobs.plan.cells import cells
from tests.conftest import but_for_a_release
from tests.shipped import SWEEPS, skip_long
from tests.test_pairs import ALLOWED, COVERING, batch, make  # noqa: F401
from tests.views.test_pipeline import EVERYTHING, MEAN, STD, raw_batch
from vitssl import config, dist, model
from vitssl.config import View
from vitssl.config.data import view_px
from vitssl.data.loading.batch import Batch
from vitssl.training import optim, passes
from vitssl.views import TrainViews
from vitssl.views.random import StepRandom

GPU = torch.device("cuda", 0)
SOON = [pair for pair in COVERING if pair[1].startswith("classify") or pair[0].startswith("vit")]
MOST = sorted({*COVERING, *(pair for pair in ALLOWED if pair[1] in ("classify/mean", "ssat/mask"))})


def onto(mode: FakeTensorMode, network: nn.Module) -> None:
    """Move parameters and buffers, and nothing else, as ``Module.to`` does, to the fake GPU."""
    for part in network.modules():
        for name, value in part.named_parameters(recurse=False):
            part._parameters[name] = nn.Parameter(mode.from_tensor(value).to(GPU), requires_grad=value.requires_grad)
        for name, value in part.named_buffers(recurse=False):
            part._buffers[name] = mode.from_tensor(value).to(GPU)


def test_a_fake_gpu_refuses_what_would_fail_or_wait_on_a_real_one():
    with FakeTensorMode():
        on_gpu = torch.ones(2, device=GPU)
        with pytest.raises(FakeTensorDeviceMismatchError):
            on_gpu + torch.arange(2)
        with pytest.raises(DataDependentOutputException):
            on_gpu.sum().item()
        with pytest.raises(RuntimeError, match="on the host"), NothingFromTheHost():
            on_gpu + torch.arange(3).to(GPU)


class NothingFromTheHost(TorchDispatchMode):
    """What is copied from there waits for the device, which a pass that is recorded cannot."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, out)):
            on_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
            if on_host and (value.dim() or function is torch.ops.aten._to_copy.default):  # else a number, an argument of the kernel
                raise RuntimeError(f"{function} on the host")
        return out


def started(run):
    """The Run's model of ten classes, as training starts with it."""
    network = model.build(run, 10).train()
    network.start(torch.full((10,), 3))
    return network


def recorded(network, on_gpu):
    """What a pass gives that copies nothing from the host, after one that may, as those before the recorded one."""
    progress = torch.full((), 0.5, device=GPU)
    network(on_gpu, progress)
    with NothingFromTheHost():
        return network(on_gpu, progress)


@pytest.mark.parametrize(("backbone", "objective"), but_for_a_release(MOST, SOON))
def test_a_step_stays_on_the_gpu(make, backbone, objective):  # noqa: F811
    run = make(backbone, objective)
    network = started(run)
    with FakeTensorMode() as mode:
        onto(mode, network)
        made = batch()
        moved = ({name: value.to(GPU) for name, value in named.items()} for named in (made.views, made.targets))
        on_gpu = Batch(*moved, made.index_B.to(GPU), torch.full((), 4.0, device=GPU))
        total, terms, weighted = recorded(network, on_gpu)
        assert {value.device for value in (total, *terms.values(), *weighted.values())} == {GPU}
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        network.before_step(0.5)
        assert optim.clip_gradients(network.parameters(), run.optim).device == GPU
        network.after_step(0.5)


def runs_of(path, place):
    """The Runs of a sweep's arms at all values of its axes, in the form that --smoke trains, those that differ in their networks."""
    spec, found = sweep.read(path, everything=True), {}
    for stage in (stage for cell in cells(spec) for stage in cell.stages):
        parts = (stage.run.backbone, stage.run.objectives, stage.run.data.views)
        found.setdefault(json.dumps([dataclasses.asdict(part) for part in parts], sort_keys=True), stage)
    return [smoke.shrink(stage.run, spec, place, stage.where, on_cpus=False) for stage in found.values()]


@pytest.mark.release
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_no_arm_of_a_sweep_copies_from_the_host(path, tmp_path):
    skip_long(path.stem)
    for run in runs_of(path, tmp_path):
        network = started(run)
        with FakeTensorMode() as mode:
            onto(mode, network)
            views, targets = {}, {}
            for name, view in config.active_views(run).items():
                px, mixes = view_px(run.data, name), view.mixup_alpha > 0 or view.cutmix_alpha > 0
                views[name] = torch.zeros(4 * view.count, 3, px, px, device=GPU)
                targets[name] = torch.zeros((4 * view.count, *([10] if mixes else [])), dtype=None if mixes else torch.long, device=GPU)
            on_gpu = Batch(views, targets, torch.arange(4, device=GPU), torch.full((), 4.0, device=GPU))
            assert recorded(network, on_gpu)[0].device == GPU


VIEWS = {
    "everything": EVERYTHING,
    "autoaugment": View(auto_augment="original", erasing_prob=1.0, mixup_alpha=1.0, cutmix_alpha=1.0),
    "pad": View(crop="pad", pad_px=2, interpolation="bilinear"),
    "resize": View(crop="resize"),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_made_on_the_gpu(view, monkeypatch):
    # what only a driver can do: pinned memory, a GPU's generator
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(StepRandom, "device_generators", lambda random, *_: [torch.Generator() for _ in random.slices])
    raws = [raw_batch(), raw_batch(slice(0, 4)), raw_batch(slice(1, 3))]
    for raw in raws:
        sizes_B2 = raw.sizes_B2.numpy()  # read on the host before all else is fake
        raw.sizes_B2 = SimpleNamespace(numpy=lambda sizes_B2=sizes_B2: sizes_B2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        make = TrainViews({"main": view}, image_size=24, mean=MEAN, std=STD, num_classes=4, seed=0, device=GPU)
        made = [make(raws[0]), *make.make_batches(raws)]
    for one in made:
        assert one.views["main"].device == one.targets["main"].device == one.index_B.device == GPU


@pytest.mark.parametrize(
    ("device", "ranks", "fields", "expected"),
    [
        (GPU, 1, {}, True),
        (GPU, 1, {"loop.cuda_graph": False}, False),
        (GPU, 1, {"loop.micro_batch_size": 16}, False),  # gradients of the second half would be added to where the graph puts its own
        (GPU, 2, {}, False),
        (torch.device("cpu"), 1, {}, False),
    ],
)
def test_cuda_graphs_are_for_steps_of_one_forward_pass_of_one_gpu(make_run, monkeypatch, device, ranks, fields, expected):
    monkeypatch.setattr(dist, "world_size", lambda: ranks)
    run = make_run({"objectives.classify": {}}, fields)
    scaler = optim.loss_scaler(device, "fp32")
    assert isinstance(passes.make(nn.Identity(), run, device, scaler, []), passes.RecordedPass) == expected


@pytest.mark.parametrize(
    ("device", "precision", "dtype"),
    [("cpu", "fp32", None), ("cpu", "bf16", torch.bfloat16), ("cpu", "fp16", None)],
)
def test_passes_without_gradients_are_in_the_runs_precision_but_for_fp16_on_a_cpu(device, precision, dtype):
    """There fp16 takes four times as long as fp32."""
    context = dist.inference_autocast(torch.device(device), precision)
    assert (context.fast_dtype if context._enabled else None) == dtype
