"""Comparisons of training steps with plainer ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import config, dist, model
from vitssl.bench.base import Bench, Comparison
from vitssl.config import Run
from vitssl.config.data import view_px
from vitssl.costs import cost
from vitssl.data.loading.batch import Batch
from vitssl.objectives.gmml import Gmml
from vitssl.training import optim, passes
from vitssl.training.train_state import compiled


def vit_run(*layers: Any) -> Run:
    """Return a Run of a ViT-T at 224 px, with ``layers`` of other fields over it."""
    base = {"data.shards": "unused", "backbone": {"name": "vit_tiny", "positions": "sincos"}, "optim.batch_size": 64}
    return config.merge(config.Run, base, *layers)


SCRATCH: dict[str, Any] = {"objectives": {"classify": {}}}
SSAT = {"objectives": {"classify": {"weight": 0.1}, "mae": {"weight": 0.9, "decoder_dim": 128, "decoder_depth": 2}}}


class TrainingStep:
    """A training step of a Run on random images: forward, backward, fused AdamW, and the objectives' work after the step."""

    def __init__(self, bench: Bench, run: Run, batch_size: int, num_classes: int = 10):
        self.run = run
        dist.set_precision(run.loop.precision)
        self.network = model.build(run, num_classes).to(bench.device).train()
        forward = compiled(self.network, run) if run.loop.compile else self.network
        scaler = optim.loss_scaler(bench.device, run.loop.precision)
        self.run_pass = passes.make(forward, run, bench.device, scaler, self.network.parameters())
        self.optimizer = optim.make(self.network, self.network.backbone, run.optim)
        views = {name: _images(bench, run, name, batch_size) for name in config.active_views(run)}
        batch = Batch.of(run, views, torch.arange(batch_size, device=bench.device) % num_classes)
        self.batch = replace(batch, labelled=float(batch_size))  # a number, as the loader gives it
        for _ in range(passes.WARM_UP + 1 if config.uses_cuda_graph(run, 1) and bench.on_gpu else 0):
            self()

    def __call__(self, batch: Batch | None = None) -> None:
        self.run_pass(batch or self.batch, 0.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.network.after_step(0.0)


def _images(bench: Bench, run: Run, view: str, batch_size: int) -> Tensor:
    """Return noise in place of a view, with all copies of the view."""
    px = view_px(run.data, view)
    return torch.randn(batch_size * getattr(run.data.views, view).count, 3, px, px, device=bench.device)


def two_steps(bench: Bench, runs: Iterable[Run], what: str, macs: str = "", on_cpu: int = 32) -> Comparison:
    """Compare a training step of the first of two Runs with one of the second, on batches of 64 images, or of ``on_cpu`` on a CPU."""
    size, times = (64, 10) if bench.on_gpu else (on_cpu, 1)
    ours, rival = (TrainingStep(bench, run, size) for run in runs)
    return bench.compare_seconds(ours, rival, f"{what}, fp32, batch {size}{macs}", times)


def ssat_step(bench: Bench) -> Comparison:
    """Compare a step of SSAT with one of training from scratch."""
    return two_steps(bench, map(vit_run, (SSAT, SCRATCH)), "SSAT step / scratch step, ViT-T/16 at 224 px", " (MACs: 1.315)")


def drloc_step(bench: Bench, backbone: str, pooling: str) -> Comparison:
    """Compare a step with Drloc with one of classification alone."""
    alone = {"backbone": {"name": backbone, "positions": "learned"}, "objectives": {"classify": {"pool": "mean"}}}
    joint = {"objectives.drloc": {"weight": 0.5, "pooling": pooling}}
    runs = (vit_run(alone, layer) for layer in (joint, {}))
    return two_steps(bench, runs, f"classify + drloc (64 pairs) step / classify step, {backbone} at 224 px")


def timm_step(bench: Bench) -> Comparison:
    """Compare our step of training from scratch with one of plain timm."""
    size, times = (64, 10) if bench.on_gpu else (32, 1)
    ours = TrainingStep(bench, vit_run(SCRATCH, {"backbone.positions": "learned", "loop.cuda_graph": False}), size)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=10).to(bench.device).train()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    images, labels = ours.batch.views["main"], ours.batch.targets["main"]

    def rival() -> None:
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    note = f"our ViT-T/16 training step / plain timm's, fp32, batch {size}"
    return bench.compare_seconds(ours, rival, note, times)


# both fuse the outputs of the same blocks and have the same decoder; they differ in the corruption and in what the error is taken over
GMML = {"backbone.positions": "learned", "objectives": {"gmml": {}}}
AUTOENCODER = {"backbone.positions": "learned", "objectives": {"gmml": {"corrupt": {"noise": None, "alien": None}, "loss_on": "all"}}}


def gmml_step(bench: Bench) -> Comparison:
    """Compare a step of GMML with one of a plain autoencoder."""
    return two_steps(bench, map(vit_run, (GMML, AUTOENCODER)), "GMML step / plain autoencoder's, ViT-T/16 at 224 px")


def gmml_corruption(bench: Bench) -> Comparison:
    """Compare GMML's corruption with an autoencoder step on as many images; on a CPU, this step of 64 images is four steps of 16."""
    parts = 1 if bench.on_gpu else 4
    step = TrainingStep(bench, vit_run(AUTOENCODER, {"backbone.name": "vit_small"}), 64 // parts)
    images = torch.randn(64, 3, 224, 224, device=bench.device)
    objective = model.build(vit_run(GMML), 10).objectives["gmml"].to(bench.device)
    assert isinstance(objective, Gmml)
    note = "GMML's corruption of 64 images of 224 px / an autoencoder step of ViT-S/16 on as many"
    return bench.compare("s", lambda: bench.seconds(lambda: objective.corrupt(images, 64), 3), lambda: parts * bench.seconds(step), note)


def lut_step(bench: Bench, symmetric: bool) -> Comparison:
    """Compare a step of LUT, in the code's form (``symmetric``) or the text's, with one of MAE."""
    base = {"backbone": {"name": "vit_base", "init": "xavier"}, "data.views.second": {}}
    tasks = [{"lut": {"symmetric": symmetric}}, {"mae": {"normalize_targets": True}}]
    runs = [vit_run(base, {"objectives": task}) for task in tasks]
    lut, mae = (cost.measure(run, 10)["macs_train_step"] for run in runs)
    form = "code's form: two views through both networks" if symmetric else "text's form: one view for each network"
    macs = f" (MACs: {lut / mae:.2f}; paper: 1.18 a step, 2.13 an epoch)"
    return two_steps(bench, runs, f"LUT step ({form}) / MAE step, ViT-B/16 at 224 px", macs, on_cpu=4)
