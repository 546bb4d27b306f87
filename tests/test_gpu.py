"""A whole run on a real GPU: loader, views, bf16, checkpoints, resume and NVML's energy, as training puts them together."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tests.test_pairs import COVERING, batch, make  # noqa: F401
from tests.training.test_train import CURVES, in_two_parts
from vitssl import config, model, train
from vitssl.data.loading.batch import Batch
from vitssl.data.loading.view_stream import slice_groups
from vitssl.files import read_events
from vitssl.training import optim, passes, train_state

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LOOP = {"loop": {"device": "cuda", "precision": "bf16", "max_steps": 20, "eval_every": 0, "log_every": 1}}
FP32 = {"loop.precision": "fp32"}


@pytest.mark.parametrize("name", CURVES)
def test_a_run_goes_on_where_it_stopped_and_is_measured(folder, tmp_path, monkeypatch, name):
    whole, parts = (folder(part, CURVES[name], LOOP, FP32) for part in ("whole", "parts"))
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    assert _losses(whole) == pytest.approx(_read_losses(parts), rel=1e-3)
    energy = [json.loads(path.read_text()) for path in sorted(parts.glob("emissions-*.json"))]
    assert [record["gpus"] for record in energy] == [1, 1] and all(record["gpu_kwh"] > 0 for record in energy)
    assert json.loads((parts / "cost.json").read_text())["inference_device"] == "cuda"


@pytest.mark.parametrize("cut", [{}, {"loop.micro_batch_size": 16}])
def test_compiled_it_comes_out_nearly_as_without(folder, cut):
    """Of an objective without noise, which compiled code draws otherwise; with the CUDA graphs of one pass a step, and without."""
    plain, compiled = (folder(f"compile_{on}", CURVES["classify"], LOOP, FP32, {"loop.compile": on}, cut) for on in (False, True))
    assert _losses(compiled) == pytest.approx(_losses(plain), rel=1e-2)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CURVES)
def test_cuda_graphs_change_nothing(folder, monkeypatch, name, compiled):
    """But the speed; also where torch compiles nothing, and evaluations and checkpoints come in between."""
    replayed, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replayed.append(graph) or replay(graph))
    fields = (CURVES[name], LOOP, FP32, {"loop": {"compile": compiled, "epochs": 20, "eval_every": 1, "keep_every": 1}})
    fields = (*fields, {"optim.batch_size": 256, "loop.ema_decay": 0.9})
    with_graphs = _losses(folder("with", *fields))
    assert len(set(replayed)) == 1 and len(replayed) == len(with_graphs) - passes.WARM_UP > 0
    assert with_graphs == pytest.approx(_losses(folder("without", *fields, {"loop.cuda_graph": False})), rel=1e-4)
    assert len(replayed) == len(with_graphs) - passes.WARM_UP


@pytest.mark.parametrize(("backbone", "objective"), COVERING)
def test_a_recorded_pass_gives_the_losses_and_gradients_of_one_that_is_launched(make, backbone, objective):  # noqa: F811
    device, ways = torch.device("cuda"), []
    for recorded in (True, False):
        run = make(backbone, objective)
        run.loop.cuda_graph = recorded
        network = model.build(run, 10).to(device).train()
        network.start(torch.full((10,), 3))
        parameters = list(network.parameters())
        ways.append((parameters, passes.make(network, run, device, optim.loss_scaler(device, "fp32"), parameters)))
    for i in range(passes.WARM_UP + 3):
        torch.manual_seed(i)
        images, losses = batch(), []
        for parameters, run_pass in ways:
            for parameter in parameters:
                parameter.grad = None
            torch.manual_seed(i)
            losses.append(run_pass(_on(device, images, labelled=i + 1.0), i / 10)[0])
        assert {name: loss.item() for name, loss in losses[0].items()} == pytest.approx(
            {k: v.item() for k, v in losses[1].items()}, rel=1e-4
        )
        for mine, theirs in zip(*(parameters for parameters, _ in ways), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-2, atol=1e-6 + 1e-3 * float(theirs.grad.abs().max()))


def _on(device, images, labelled):
    moved = ({name: value.to(device) for name, value in named.items()} for named in (images.views, images.targets))
    return Batch(*moved, images.index_B.to(device), labelled)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_cuda_graphs_change_nothing_in_sixteen_bits(folder, precision):
    fields = (CURVES["ssat"], LOOP, {"loop.precision": precision})
    with_graphs, without = (_losses(folder(f"{on}", *fields, {"loop.cuda_graph": on})) for on in (True, False))
    assert with_graphs == pytest.approx(without, rel=1e-3)


WAITING = """
import torch
from torch import nn
from vitssl import config
from vitssl.training import attempt, optim, passes
from vitssl.data.loading.batch import Batch

class Waiting(nn.Linear):
    def forward(self, batch, progress):
        loss = super().forward(batch.views["main"]).sum()
        return loss * loss.item(), {}, {}

device = torch.device("cuda")
network = Waiting(2, 2).to(device)
run_pass = passes.make(network, config.Run(), device, optim.loss_scaler(device, "fp32"), network.parameters())
batch = Batch({"main": torch.ones(2, 2, device=device)}, {}, torch.arange(2, device=device), 2.0)
try:
    for _ in range(passes.WARM_UP + 1):
        run_pass(batch, 0.0)
except RuntimeError as error:
    print(attempt._advice(error), flush=True)  # before the process ends, in whatever way
"""


def test_what_waits_for_the_gpu_is_not_recorded():
    """In a process of its own: torch's generator is of no more use after it."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True)
    assert "loop.cuda_graph=false" in done.stdout, done.stderr


def test_a_compiled_run_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    whole, parts = (folder(name, CURVES["ssat"], LOOP, FP32, {"loop.compile": True}) for name in ("whole", "parts"))
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    assert _losses(whole) == pytest.approx(_read_losses(parts), rel=1e-4)


def _losses(folder):
    assert train.main([str(folder)]) == 0
    return _read_losses(folder)


def _read_losses(folder):
    return [event["loss"] for event in read_events(folder / "metrics.jsonl") if event["event"] == "train"]


@pytest.mark.parametrize(("late", "read_late"), [(20_000_000, 0), (5_000_000, 20_000_000)])
@pytest.mark.parametrize("cut", [{}, {"loop.micro_batch_size": 16}])
def test_views_made_ahead_are_those_of_each_step(folder, monkeypatch, late, read_late, cut):
    """Where they come late, by so many cycles, and are read late, while their memory is given out again."""
    run = config.load(folder("run", CURVES["dino"], {"loop.device": "cuda", "data.image_size": 64}, cut))
    state = train_state.TrainState(folder("state", CURVES["dino"]), run)
    views = state.views.make_batches
    monkeypatch.setattr(state.views, "make_batches", lambda raws: torch.cuda._sleep(late) or views(raws))
    kept = []
    for slices in state.batches(0, 20):
        for made in slices:
            torch.cuda._sleep(read_late)
            kept.append({name: view.clone() for name, view in made.views.items()})
            del made
    raws = (raw for parts in state.loader.batches(0, 20) for raw in parts)
    together = slice_groups(raws, state.views.slices_at_once(len(kept[0]["main"]), state.loader.largest_px), 0)
    assert len(kept) == 20 * state.accumulate
    for seen, wanted in zip(kept, (made.views for group in together for made in views(group)), strict=True):
        assert seen.keys() == wanted.keys() and all(torch.equal(view, wanted[name]) for name, view in seen.items())


@pytest.mark.parametrize("name", ["gmml", "lut", "sit", "masked_tokens"])
def test_a_step_waits_for_nothing(make_run, name):
    """Corrupting by every kind, drawing masks, selecting, all terms and the teacher: no value is read back."""
    every_kind = {"objectives.gmml.corrupt": {"zeros": {}, "copy": {}}} if name == "gmml" else {}
    run = make_run(CURVES[name], every_kind)
    network = model.build(run, 10).cuda().train()
    views = {view: torch.randn(8 * cfg.count, 3, 8, 8, device="cuda") for view, cfg in config.active_views(run).items()}
    on_gpu = Batch(views, {"main": torch.arange(8, device="cuda")}, torch.arange(8, device="cuda"), 8.0)
    progress = torch.zeros((), device="cuda")
    network(on_gpu, progress)[0].backward()  # kernels and workspaces
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(on_gpu, progress)[0].backward()
        network.objectives[name].after_step(network.backbone, 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
