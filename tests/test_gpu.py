"""A whole run on a real GPU: loader, views, bf16, checkpoints, resume and NVML's energy, as training puts them together."""

from __future__ import annotations

import json

import pytest
import torch

from tests.test_train import CURVES, in_two_parts
from vitssl import config, model, train
from vitssl.data.batch import Batch
from vitssl.files import read_events
from vitssl.train_state import TrainState

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LOOP = {"loop": {"device": "cuda", "precision": "bf16", "max_steps": 20, "eval_every": 0, "log_every": 1}}
FP32 = {"loop.precision": "fp32"}


@pytest.mark.parametrize("name", CURVES)
def test_a_run_goes_on_where_it_stopped_and_is_measured(folder, tmp_path, monkeypatch, name):
    parts = folder("parts", CURVES[name], LOOP)
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    energy = [json.loads(path.read_text()) for path in sorted(parts.glob("emissions-*.json"))]
    assert [record["gpus"] for record in energy] == [1, 1] and all(record["gpu_kwh"] > 0 for record in energy)
    assert json.loads((parts / "cost.json").read_text())["inference_device"] == "cuda"


@pytest.mark.parametrize("name", CURVES)
def test_compiled_it_comes_out_nearly_as_without(folder, name):
    """With the CUDA graphs of one pass a step, and without those where gradients are accumulated."""
    cut = {"loop.micro_batch_size": 16} if name == "classify" else {}
    losses = [_losses(folder(f"compile_{fields}", CURVES[name], LOOP, FP32, {"loop.compile": True}, fields)) for fields in ({}, cut)]
    plain = _losses(folder("plain", CURVES[name], LOOP, FP32))
    assert losses[0] == pytest.approx(plain, rel=1e-2) and losses[1] == pytest.approx(plain, rel=1e-2)


def test_a_compiled_run_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    whole, parts = (folder(name, CURVES["ssat"], LOOP, FP32, {"loop.compile": True}) for name in ("whole", "parts"))
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    assert _losses(whole) == pytest.approx(_read_losses(parts), rel=1e-4)


def _losses(folder):
    assert train.main([str(folder)]) == 0
    return _read_losses(folder)


def _read_losses(folder):
    return [event["loss"] for event in read_events(folder / "metrics.jsonl") if event["event"] == "train"]


def test_views_made_ahead_are_those_of_each_step(folder):
    """On a stream of their own, while the GPU is busy with another and memory is given out again."""
    run = config.load(folder("run", CURVES["dino"], {"loop.device": "cuda", "data.image_size": 64}))
    train_state = TrainState(folder("state", CURVES["dino"]), run)
    busy = torch.randn(2048, 2048, device="cuda")
    for (batch,), (raw,) in zip(train_state.batches(0, 20), train_state.loader.batches(0, 20), strict=True):
        busy = (busy @ busy).clamp(-1, 1)
        wanted = train_state.views(raw)
        assert all(torch.equal(view, wanted.views[name]) for name, view in batch.views.items()) and batch.views
        assert torch.equal(batch.index_B, wanted.index_B)


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
