"""What a sweep will cost, before it is submitted: from MACs, images, and a measured or assumed throughput.

Runs whose images are not known before their shards are built cannot be predicted, and are left out. A CPU's power is
not predicted: its runs have no energy and CO2e before one of the same architecture has measured them.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.plan import ask
from jobs.plan.architecture import architecture
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.plan.pace import Key, Pace, key_of, measured, on_gpu
from jobs.plan.shards import expected_index, images_evaluated, images_trained
from jobs.plan.sweep import Spec
from jobs.source import digest, source_files
from vitssl.config import ConfigError, Run, Site, recorded
from vitssl.costs.emissions import intensity_kg_per_kwh
from vitssl.files import read_json, write_json
from vitssl.words import counted

FLOPS_PER_MAC = 2  # floating-point operations
# to start a run, on each of its devices: imports, the device, the first batches; and to compile its network
START_S, COMPILING_S = 15.0, 60.0
# share of a board's peak that ViT-S and ViT-B reached on an H200, and about what a step of SSAT's ViT-T took there and on an H100
# (docs/speed.md): launched kernel by kernel, as a CUDA graph, and as one of compiled kernels
UTILISATION = 0.3
LAUNCHED_S, RECORDED_S, COMPILED_S = 0.05, 0.015, 0.01
# sustained, where neither the site nor an earlier run gives it: an average board, and a few CPU cores
GPU_TFLOPS, CPU_TFLOPS = 20.0, 0.1


@dataclass
class Prediction:
    """The predicted cost of one run."""

    name: str
    macs: float  # of a training step, per image
    images: float  # over all epochs
    hours: float  # from start to end, on all of the run's devices
    gpu_hours: float  # 0 on a CPU
    energy_kwh: float | None  # on a CPU that of earlier runs of the same architecture; None where there is none
    co2e_kg: float | None
    money: float  # for GPU-hours
    basis: str  # where the throughput comes from


def sweep(graph: Graph, launch: Launch) -> list[Prediction]:
    """Predict every run that is not done yet."""
    todo = [job for job in graph.jobs if not job.is_trained and expected_index(job.run.data) is not None]
    costs, paces = costs_of([job.run for job in todo], launch), measured(launch.sweep.parent)
    return [_predict(job, launch, cost, paces) for job, cost in zip(todo, costs, strict=True)]


def _predict(job: Job, launch: Launch, cost: dict[str, Any], paces: dict[Key, Pace]) -> Prediction:
    site, images, macs = launch.site, images_trained(job.run), cost["macs_train_step"]
    processes = job.resources.nodes * max(1, job.resources.gpus_per_node)
    pace, gpu = paces.get(key_of(job.run, job.resources, launch)), on_gpu(job.run, job.resources, launch)
    per_device, basis = _throughput(pace, gpu, site, macs, job.run.optim.batch_size / processes, _least_step_s(job.run, processes))
    train_equivalent = images + images_evaluated(job.run) * cost["macs_inference"] / macs
    start_s = START_S + (COMPILING_S if job.run.loop.compile else 0.0)
    hours = (train_equivalent / per_device + start_s * processes) / 3600
    if gpu:
        kwh: float | None = hours * site.gpu_power_w / 1000
    else:
        kwh = None if pace is None or pace.kwh_per_image is None else images * pace.kwh_per_image
    kg = None if kwh is None else kwh * intensity_kg_per_kwh(site)
    gpu_hours = hours if gpu else 0.0
    return Prediction(job.name, macs, images, hours / processes, gpu_hours, kwh, kg, gpu_hours * site.price_per_gpu_hour, basis)


def _least_step_s(run: Run, processes: int) -> float:
    if not recorded(run, processes):
        return LAUNCHED_S
    return COMPILED_S if run.loop.compile else RECORDED_S


def check_budget(spec: Spec, graph: Graph, predictions: list[Prediction], site: Site) -> None:
    """Hold the predictions of all runs that are not done yet against the sweep's budget."""
    for name, limit in vars(spec.budget).items():
        if limit is not None and (reason := _over_budget(name, limit, graph, predictions, site)):
            raise ConfigError(reason, f"budget.{name}", spec.place(f"budget.{name}"))


def _over_budget(name: str, limit: float, graph: Graph, predictions: list[Prediction], site: Site) -> str | None:
    if not 0 <= limit < math.inf:
        return f"{limit:g} is not an amount"
    if unpredicted := {job.name for job in graph.jobs if not job.is_trained} - {prediction.name for prediction in predictions}:
        return f"{min(unpredicted)} cannot be predicted before its shards are built (vitssl shards build)"
    if name in ("gpu_hours", "money") and predictions and not any(prediction.gpu_hours for prediction in predictions):
        return "these runs use no GPU, so it has no effect; set budget.kwh or budget.kg_co2e"
    if name == "money" and not site.price_per_gpu_hour:
        return f"the site {site.name} has no price; set site.price_per_gpu_hour"
    units = {"gpu_hours": "GPU-hours", "kwh": "kWh", "kg_co2e": "kg CO2e", "money": site.currency}
    arms, parts = {job.name: job.arm for job in graph.jobs}, Counter[str]()
    for prediction in predictions:
        amount = getattr(prediction, {"kwh": "energy_kwh", "kg_co2e": "co2e_kg"}.get(name, name))
        if amount is None:
            unknown = "CPU energy is unknown until a first run of each architecture has measured it"
            return f"{unknown}; leave budget.{name} out for one: arms=[...] axes.seed=[0]"
        parts[arms[prediction.name]] += amount
    if parts.total() <= limit:
        return None
    arm, most = parts.most_common(1)[0]
    return f"{parts.total():.3g} {units[name]} are predicted, more than {limit:g}; the largest part: {arm} {most:.3g}"


def most_gpus(graph: Graph) -> int:
    """How many GPUs the runs that are not done may hold at once; a run and what starts from it never run together.

    A run with several parents is counted as running beside all but the first, so the true number may be smaller.
    """
    total, below = 0, Counter[str]()
    for job in reversed([job for job in graph.jobs if not job.is_trained]):
        held = max(job.resources.nodes * job.resources.gpus_per_node, below[job.identity])
        waits_for = [parent.identity for parent in job.parents if not parent.is_trained]
        if waits_for:
            below[waits_for[0]] += held
        else:
            total += held
    return total


def longest_chain_hours(graph: Graph, predictions: list[Prediction]) -> float:
    """From the first start to the last end, if nothing waits for anything but its parents."""
    hours, ends = {p.name: p.hours for p in predictions}, {}
    for job in graph.jobs:
        ends[job.identity] = hours.get(job.name, 0.0) + max((ends[parent.identity] for parent in job.parents), default=0.0)
    return max(ends.values(), default=0.0)


def hours_here(graph: Graph, predictions: list[Prediction], width: int) -> float:
    """From start to end on this machine, so many runs side by side."""
    return max(longest_chain_hours(graph, predictions), sum(p.hours for p in predictions) / width)


def _throughput(pace: Pace | None, gpu: bool, site: Site, macs: float, batch: float, least_step_s: float) -> tuple[float, str]:
    """(images/s of one process that has ``batch`` of a step's, where that number comes from)."""
    if pace is not None:
        return pace.images_per_s, f"measured: the median of earlier runs of the same architecture in this runs folder, on {pace.device}"
    if not gpu:
        flops, basis = CPU_TFLOPS * 1e12, f"assumed: {CPU_TFLOPS:g} TFLOP/s sustained by a CPU's cores (run once, and it is measured)"
    elif site.gpu_tflops is None:
        flops, basis = GPU_TFLOPS * 1e12, f"assumed: {GPU_TFLOPS:g} TFLOP/s sustained by one GPU (set site.gpu_tflops, or run once)"
    else:
        flops = site.gpu_tflops * 1e12 * UTILISATION
        basis = f"assumed: {UTILISATION:.0%} of the {site.gpu_tflops:g} TFLOP/s of the site's {site.gpu or 'GPU'}"
    computed = flops / (FLOPS_PER_MAC * macs)
    return (min(computed, batch / least_step_s), f"{basis}, and {1000 * least_step_s:.0f} ms a step at least") if gpu else (computed, basis)


# --------------------------------------------------------------------------------------------------------------- MACs


def costs_of(runs: list[Run], launch: Launch) -> list[dict[str, Any]]:
    """`vitssl.costs.cost.measure` of each: counted once per source and cached; all new ones in a process that takes seconds to start."""
    classes = [len(index.classes) for run in runs if (index := expected_index(run.data)) is not None]
    files = _counted(runs, classes, launch)
    new = {file: (run, count) for file, run, count in zip(files, runs, classes, strict=True) if not file.exists()}
    counted = dict(zip(new, _count(*zip(*new.values(), strict=True), launch), strict=True)) if new else {}
    if launch.sweep.parent.parent.is_dir():  # a dry run makes no folders elsewhere, of a mistyped --runs
        for file, cost in counted.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, cost)
    return [counted.get(file) or read_json(file) for file in files]


def parameters(runs: list[Run], launch: Launch) -> list[int]:
    """How many each trains; 0 where that was not counted with this source, or its shards are not built: counting takes seconds."""
    classes = [0 if (index := expected_index(run.data)) is None else len(index.classes) for run in runs]
    return [read_json(file).get("params_train", 0) for file in _counted(runs, classes, launch)]


def _counted(runs: list[Run], classes: list[int], launch: Launch) -> list[Path]:
    """The files that hold their costs, once these were counted."""
    source = digest(source_files())[:12]
    names = [f"{architecture(run)}-{count}-{source}.json" for run, count in zip(runs, classes, strict=True)]
    return [launch.sweep.parent / ".cost" / name for name in names]


def _count(runs: tuple[Run, ...], classes: tuple[int, ...], launch: Launch) -> list[dict[str, Any]]:
    print(f"counting the MACs of {counted(len(runs), 'network')} ...", file=sys.stderr, flush=True)
    try:
        return ask.of_runs("cost", runs, classes, launch.site)
    except ask.Refused as refused:
        raise ConfigError(f"vitssl cost failed: {refused}") from None
