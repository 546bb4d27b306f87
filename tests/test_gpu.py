"""A whole run on a real GPU: loader, views, bf16, checkpoints, resume and NVML's energy, as training puts them together."""

from __future__ import annotations

import json

import pytest
import torch

from tests.test_train import CURVES, in_two_parts
from vitssl import config, model, train
from vitssl.data.batch import Batch
from vitssl.files import read_events

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LOOP = {"loop": {"device": "cuda", "precision": "bf16", "max_steps": 20, "eval_every": 0, "log_every": 1}}


@pytest.mark.parametrize("name", CURVES)
def test_a_run_goes_on_where_it_stopped_and_is_measured(folder, tmp_path, monkeypatch, name):
    parts = folder("parts", CURVES[name], LOOP)
    in_two_parts(parts, tmp_path, monkeypatch, steps=20)
    energy = [json.loads(path.read_text()) for path in sorted(parts.glob("emissions-*.json"))]
    assert [record["gpus"] for record in energy] == [1, 1] and all(record["gpu_kwh"] > 0 for record in energy)
    assert json.loads((parts / "cost.json").read_text())["inference_device"] == "cuda"


def test_compiled_it_comes_out_nearly_as_without(folder):
    fields = {"loop": {"precision": "fp32"}}
    plain, compiled = (folder(f"compile_{on}", CURVES["classify"], LOOP, fields, {"loop.compile": on}) for on in (False, True))
    assert train.main([str(plain)]) == train.main([str(compiled)]) == 0
    losses = [[e["loss"] for e in read_events(one / "metrics.jsonl") if e["event"] == "train"] for one in (plain, compiled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


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
