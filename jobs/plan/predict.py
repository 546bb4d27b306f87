"""The predicted cost of a sweep, before it is submitted.

For each run, the hours are summed over its processes, one per GPU or a single one on the CPU:

    hours = ((images trained on + images evaluated * MACs inference / MACs step) / images per s + start time * processes) / 3600
    time from start to end = hours / processes
    GPU-hours = hours, or 0 on a CPU
    energy in kWh = hours * the site's power per GPU in kW, or on a CPU images trained on * measured kWh per image
    CO2e in kg = energy * the grid's intensity; money = GPU-hours * the site's price

The images per second of one process are measured by finished runs of the same architecture. Without such a run they are assumed:
FLOP/s / (2 * MACs of a training step per image), and on a GPU no faster than one batch per shortest step.

Runs are left out while the number of their images is unknown, which may be until their shards are built. A CPU's power is not
predicted: its runs have no energy and CO2e until one of the same architecture has measured them.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.plan import questions
from jobs.plan.architecture import architecture
from jobs.plan.graph import Graph, Job
from jobs.plan.launch import Launch
from jobs.plan.pace import Key, Pace, key_of, measured, on_gpu
from jobs.plan.shards import expected_index, images_evaluated, images_trained
from jobs.plan.sweep import Spec
from jobs.source import digest, source_files
from vitssl.config import ConfigError, Run, Site, uses_cuda_graph
from vitssl.costs.emissions import intensity_kg_per_kwh
from vitssl.files import read_json, write_json
from vitssl.words import counted

FLOPS_PER_MAC = 2  # floating-point operations
# to start a run on each of its devices (imports, the device, the first batches), and to compile its network
START_S, COMPILING_S = 15.0, 60.0
# the share of its peak that a board reaches, as ViT-S and ViT-B did on an H200; and the shortest step on a GPU, about what SSAT's ViT-T
# took there and on an H100 (vitssl/docs/speed.md): launched kernel by kernel, as a CUDA graph, and as a CUDA graph of compiled kernels
UTILISATION = 0.3
LAUNCHED_S, RECORDED_S, COMPILED_S = 0.05, 0.015, 0.01
# sustained throughput of an average board and of a few CPU cores, if neither the site nor an earlier run gives it
GPU_TFLOPS, CPU_TFLOPS = 20.0, 0.1


@dataclass
class Prediction:
    """The predicted cost of one run."""

    name: str
    macs: float  # of a training step, per image
    images: float  # over all epochs
    hours: float  # from start to end, while all of the run's devices work
    gpu_hours: float  # summed over GPUs; 0 on a CPU
    energy_kwh: float | None  # None on a CPU, unless earlier runs of the same architecture measured it
    co2e_kg: float | None
    money: float  # for the GPU-hours, in the site's currency
    basis: str  # where the throughput comes from


def predict_runs(graph: Graph, launch: Launch) -> list[Prediction]:
    """Predict the cost of every run that is not trained yet and whose number of images is known."""
    todo = [job for job in graph.jobs if not job.is_trained and expected_index(job.run.data) is not None]
    costs, paces = costs_of([job.run for job in todo], launch), measured(launch.sweep.parent)
    return [_predict(job, launch, cost, paces) for job, cost in zip(todo, costs, strict=True)]


def _predict(job: Job, launch: Launch, cost: dict[str, Any], paces: dict[Key, Pace]) -> Prediction:
    """Predict the cost of one run by the formula of the module's docstring."""
    site, images, macs = launch.site, images_trained(job.run), cost["macs_train_step"]
    processes = job.resources.nodes * max(1, job.resources.gpus_per_node)
    pace, gpu = paces.get(key_of(job.run, job.resources, launch)), on_gpu(job.run, job.resources, launch.executor)
    images_per_s, basis = _throughput(pace, gpu, site, macs, job.run.optim.batch_size / processes, _least_step_s(job.run, processes))
    equivalent_images = images + images_evaluated(job.run) * cost["macs_inference"] / macs
    start_s = START_S + (COMPILING_S if job.run.loop.compile else 0.0)
    hours = (equivalent_images / images_per_s + start_s * processes) / 3600
    if gpu:
        kwh: float | None = hours * site.gpu_power_w / 1000
    else:
        kwh = None if pace is None or pace.kwh_per_image is None else images * pace.kwh_per_image
    co2e_kg = None if kwh is None else kwh * intensity_kg_per_kwh(site)
    gpu_hours = hours if gpu else 0.0
    return Prediction(job.name, macs, images, hours / processes, gpu_hours, kwh, co2e_kg, gpu_hours * site.price_per_gpu_hour, basis)


def _least_step_s(run: Run, processes: int) -> float:
    """Return the shortest time of a training step on a GPU, which launching its kernels takes however small the network is."""
    if not uses_cuda_graph(run, processes):
        return LAUNCHED_S
    return COMPILED_S if run.loop.compile else RECORDED_S


def check_budget(spec: Spec, graph: Graph, predictions: list[Prediction], site: Site) -> None:
    """Check the predictions of all runs that are not trained yet against the sweep's budget.

    Raises:
        ConfigError: the predictions exceed the budget, or cannot be compared with it.
    """
    for name, limit in vars(spec.budget).items():
        if limit is not None and (reason := _over_budget(name, limit, graph, predictions, site)):
            raise ConfigError(reason, f"budget.{name}", spec.place(f"budget.{name}"))


def _over_budget(name: str, limit: float, graph: Graph, predictions: list[Prediction], site: Site) -> str | None:
    """Return why the predictions exceed the ``limit`` of one field of the budget or cannot be compared with it, or None."""
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
            reason = "CPU energy is unknown until a first run of each architecture has measured it"
            return f"{reason}; leave budget.{name} out for one: arms=[...] axes.seed=[0]"
        parts[arms[prediction.name]] += amount
    if parts.total() <= limit:
        return None
    arm, amount_of_arm = parts.most_common(1)[0]
    return f"{parts.total():.3g} {units[name]} are predicted, more than {limit:g}; the largest part: {arm} {amount_of_arm:.3g}"


def most_gpus(graph: Graph) -> int:
    """Return how many GPUs the runs that are not trained may hold at once, as a run and those that start from it never train together.

    A run with several parents is counted as training beside all but the first, so that the true number may be smaller.
    """
    total, held_by_children = 0, Counter[str]()
    for job in reversed([job for job in graph.jobs if not job.is_trained]):
        held = max(job.resources.nodes * job.resources.gpus_per_node, held_by_children[job.identity])
        untrained_parents = [parent.identity for parent in job.parents if not parent.is_trained]
        if untrained_parents:
            held_by_children[untrained_parents[0]] += held
        else:
            total += held
    return total


def longest_chain_hours(graph: Graph, predictions: list[Prediction]) -> float:
    """Return the hours from the first start to the last end, if every run waits only for its parents."""
    hours = {p.name: p.hours for p in predictions}
    ends: dict[str, float] = {}
    for job in graph.jobs:
        ends[job.identity] = hours.get(job.name, 0.0) + max((ends[parent.identity] for parent in job.parents), default=0.0)
    return max(ends.values(), default=0.0)


def hours_here(graph: Graph, predictions: list[Prediction], width: int) -> float:
    """Return the hours from start to end on this machine, with ``width`` runs side by side."""
    return max(longest_chain_hours(graph, predictions), sum(p.hours for p in predictions) / width)


def _throughput(pace: Pace | None, gpu: bool, site: Site, macs: float, batch: float, least_step_s: float) -> tuple[float, str]:
    """Return the images/s of one process, which has ``batch`` images of each step, and the basis of that number in words."""
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
    """Return the costs of each Run, as `vitssl.costs.cost.measure` counts them.

    They are cached for the present source. All new ones are counted in one process, which takes seconds to start.
    """
    classes = [len(index.classes) for run in runs if (index := expected_index(run.data)) is not None]
    files = _cost_files(runs, classes, launch)
    uncounted = {file: (run, count) for file, run, count in zip(files, runs, classes, strict=True) if not file.exists()}
    new_costs: dict[Path, dict[str, Any]] = {}
    if uncounted:
        counted_now = _count([run for run, _ in uncounted.values()], [count for _, count in uncounted.values()], launch)
        new_costs = dict(zip(uncounted, counted_now, strict=True))
    if launch.sweep.parent.parent.is_dir():  # a dry run with a mistyped --runs makes no folders there
        for file, cost in new_costs.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, cost)
    return [new_costs.get(file) or read_json(file) for file in files]


def parameters(runs: list[Run], launch: Launch) -> list[int]:
    """Return the number of parameters that each Run trains, or 0 if it is not known.

    Nothing is counted for this, as that takes seconds: a Run counts as unknown until its costs were counted with the present source.
    """
    classes = [0 if (index := expected_index(run.data)) is None else len(index.classes) for run in runs]
    return [read_json(file).get("params_train", 0) for file in _cost_files(runs, classes, launch)]


def _cost_files(runs: list[Run], classes: list[int], launch: Launch) -> list[Path]:
    """Return the files that hold the costs of ``runs`` once they were counted with the present source."""
    source = digest(source_files())[:12]
    names = [f"{architecture(run)}-{count}-{source}.json" for run, count in zip(runs, classes, strict=True)]
    return [launch.sweep.parent / ".cost" / name for name in names]


def _count(runs: Sequence[Run], classes: Sequence[int], launch: Launch) -> list[dict[str, Any]]:
    """Count the costs of ``runs`` in the training environment."""
    print(f"counting the MACs of {counted(len(runs), 'network')} ...", file=sys.stderr, flush=True)
    try:
        return questions.of_runs("cost", runs, classes, launch.site)
    except questions.Refused as refused:
        raise ConfigError(f"vitssl cost failed: {refused}") from None
