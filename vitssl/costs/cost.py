"""MACs, parameters, activations and inference speed of a Run.

`vitssl.costs.macs` counts by fvcore's rules, which do not know fused attention: everything is counted with unfused attention, on one image.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitssl import config, dist, model, pool
from vitssl.backbones.layers import set_fused_attention
from vitssl.config import Objectives, Run
from vitssl.costs import macs
from vitssl.data.loading.batch import Batch

WARM_UP, MIN_BATCHES, MAX_BATCHES = 2, 3, 9  # batches of a measurement of inference speed: uncounted at first, then at least and at most
ENOUGH_S = 1.0  # after this time MIN_BATCHES are enough


def _batch(run: Run) -> Batch:
    """Return a batch of one image, with all of the Run's views in their sizes."""
    px = {name: config.view_px(run.data, name) for name in config.active_views(run)}
    views = {name: torch.zeros(view.count, 3, px[name], px[name]) for name, view in config.active_views(run).items()}
    return Batch.of(run, views, torch.zeros(1, dtype=torch.int64))


def measure(run: Run, num_classes: int) -> dict[str, Any]:
    """Return the costs of one image.

    - ``macs_train_forward``: the forward pass of a training step as it is run here, where passes share one patch embedding.
    - ``macs_train_step``: forward and backward pass. A teacher and a frozen backbone have no backward pass; for what is trained, it costs
      about two forward passes.
    - ``macs_passes``: each objective with an embedding of its own, as the papers count (SSAT's 1.26 + 0.43). An objective that reads a pass
      which another one makes anyway (Drloc or SimCLR next to classify) counts by what it adds.
    """
    with macs.shapes_only(), torch.no_grad():
        network = _unfused(run, num_classes)
        train_forward, passes = _train_forwards(run, num_classes)
        with macs.Counter() as counter:
            inferred = _predict(network, Batch.of_images(torch.zeros(1, 3, run.data.image_size, run.data.image_size)))
        macs_inference, activations = counter.total(inferred)
    inference = [network.backbone, *(network.objectives[n] for n, o in config.active(run.objectives).items() if o.classifies)]
    return {
        "params_train": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "params_inference": sum(p.numel() for part in inference for p in part.parameters()),
        "macs_train_forward": train_forward,
        "macs_train_step": train_forward + _train_backward(run, num_classes),
        "macs_passes": passes,
        "macs_inference": macs_inference,
        "activations_inference": activations,
        "precision": run.loop.precision,
    }


def measure_all(runs: list[Run], num_classes: list[int]) -> list[dict[str, Any]]:
    """Return the costs of one image (`measure`) for each of several Runs, computed on all cores that this process may use."""
    costs: dict[int, dict[str, Any]] = {}
    tasks = list(enumerate(zip(runs, num_classes, strict=True)))
    pool.run(_measure_one, tasks, workers=pool.processes(None, tasks), advance=lambda result: costs.update([result]))
    return [costs[i] for i in range(len(runs))]


def _measure_one(task: tuple[int, tuple[Run, int]]) -> tuple[int, dict[str, Any]]:
    number, (run, num_classes) = task
    return number, measure(run, num_classes)


def _predict(network: model.Model, batch: Batch) -> Tensor:
    """Return what a trained network infers: logits, or the backbone's tokens without a classifier."""
    logits_BK = network.predict(batch)
    return network.backbone(network.backbone.embed(batch.views["main"])).sequence() if logits_BK is None else logits_BK


def _train_forwards(run: Run, num_classes: int) -> tuple[int, dict[str, int]]:
    """Return the MACs of a training step's forward pass, and the MACs of each objective (``macs_passes`` of `measure`).

    Objectives are added one after the other. Each counts by the MACs that it adds to the earlier ones, or, if it shares no pass through the
    backbone with them, by the MACs of a Run with this objective alone.
    """
    by_objective: dict[str, int] = {}
    joint, total, passes = dataclasses.replace(run, objectives=Objectives()), 0, 0
    for name, objective in config.active(run.objectives).items():
        added: dict[str, Any] = {name: objective}
        joint = dataclasses.replace(run, objectives=dataclasses.replace(joint.objectives, **added))
        total_before, passes_before = total, passes
        total, passes = _train_forward(joint, num_classes)
        by_objective[name] = total - total_before
        if not set(objective.views()) <= set(run.data.views.enabled()):
            continue  # it reads a view that another objective makes
        alone = dataclasses.replace(run, objectives=Objectives(**added))
        macs_alone, passes_alone = _train_forward(alone, num_classes) if total_before else (total, passes)
        if passes - passes_before == passes_alone:  # it shares no pass
            by_objective[name] = macs_alone
    return total, by_objective


def _train_forward(run: Run, num_classes: int) -> tuple[int, int]:
    """Return the MACs of a training step's forward pass, and the number of its passes through the backbone."""
    network, passes = _unfused(run, num_classes), []
    network.backbone.register_forward_hook(lambda *_: passes.append(1))
    with macs.Counter() as counter:
        total, *_ = network(_batch(run), torch.zeros(()))
    return counter.total(total)[0], len(passes)


def _train_backward(run: Run, num_classes: int) -> int:
    """Return the MACs of a training step's backward pass; 0 for a Run without objectives, such as imported weights."""
    if not config.active(run.objectives):
        return 0
    with macs.shapes_only(), torch.enable_grad():
        total, *_ = _unfused(run, num_classes)(_batch(run), torch.zeros(()))
        with macs.Counter() as counter:
            total.backward()
    return counter.macs


def _unfused(run: Run, num_classes: int) -> model.Model:
    network = model.build(run, num_classes).eval()
    set_fused_attention(network, False)
    return network


def throughput(network: model.Model, run: Run, device: torch.device) -> dict[str, Any]:
    """Return the median inference speed on ``device``, in the Run's precision, with the largest batch up to 256 (on a CPU: 32) that fits.

    ``inference_spread`` shows how quiet the machine was: the interquartile range of the batches' times, divided by their median. Nine
    batches are timed, or as many as fit into a second, but at least three: a batch of a large network on a CPU may take longer than a step
    of training.
    """
    batch_size = 256 if device.type == "cuda" else 32
    while True:
        try:
            return _throughput(network, run, device, batch_size)
        except torch.OutOfMemoryError:  # a finished training must not be lost because this figure cannot be measured
            if batch_size == 1:
                raise
        batch_size //= 2


@torch.inference_mode()
def _throughput(network: model.Model, run: Run, device: torch.device, batch_size: int) -> dict[str, Any]:
    size = run.data.image_size
    batch = Batch.of_images(torch.zeros(batch_size, 3, size, size, device=device))
    was_training = network.training
    times_s: list[float] = []
    network.eval()
    while len(times_s) < WARM_UP + MIN_BATCHES or (len(times_s) < WARM_UP + MAX_BATCHES and sum(times_s[WARM_UP:]) < ENOUGH_S):
        started = time.perf_counter()
        with dist.inference_autocast(device, run.loop.precision):
            _predict(network, batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times_s.append(time.perf_counter() - started)
    network.train(was_training)
    low_s, median_s, high_s = np.percentile(times_s[WARM_UP:], (25, 50, 75)).tolist()
    return {
        "inference_images_per_s": batch_size / median_s,
        "inference_spread": (high_s - low_s) / median_s,
        "inference_device": device.type,
        "inference_batch_size": batch_size,
    }


def table(measured: dict[str, Any]) -> str:
    """Return the figures of `measure` as lines of text."""
    passes = " + ".join(f"{macs / 1e9:.3f} ({name})" for name, macs in measured["macs_passes"].items())
    rows = {
        "parameters, training": f"{measured['params_train']:,}",
        "parameters, inference": f"{measured['params_inference']:,}",
        "GMACs, inference": f"{measured['macs_inference'] / 1e9:.4f}",
        "GMACs, training forward as run": f"{measured['macs_train_forward'] / 1e9:.4f}",
        "GMACs, by objective": passes,
        "GMACs, training step (backward too)": f"{measured['macs_train_step'] / 1e9:.4f}",
        "activations, inference": f"{measured['activations_inference']:,}",
    }
    return "\n".join(f"{name:38}{value}" for name, value in rows.items())
