"""The printed plan of a submission: the runs of a sweep and their predicted cost."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.display.tables import print_table
from jobs.plan.graph import Graph, Job, short
from jobs.plan.launch import Launch
from jobs.plan.predict import START_S, Prediction, hours_here, longest_chain_hours, most_gpus
from jobs.plan.sweep import Spec
from jobs.slots import slots
from jobs.slurm import cluster, limits, sbatch
from vitssl.config import Run, Site, active, checkpoints, dotted
from vitssl.config.sweep import Resources
from vitssl.costs.emissions import intensity_kg_per_kwh
from vitssl.run_state import read_state
from vitssl.words import counted, duration, listed

MOST_LINES = 30  # in the table of a sweep, unless every job is asked for
ALL_JOBS = "--all-jobs"
GMACS = "GMACs/image, step"  # of forward and backward pass


class Line(NamedTuple):
    """A line of the table: runs that differ only in their seed, or a single run."""

    label: str
    jobs: list[Job]

    @property
    def objectives(self) -> str:
        return _each(" + ".join(active(job.run.objectives)) for job in self.jobs)

    @property
    def state(self) -> str:
        """The state of the line's runs, such as done; if they differ, each with its count, such as 1 done, 2 failed."""
        states = Counter(state(job) for job in self.jobs)
        return next(iter(states)) if len(states) == 1 else ", ".join(f"{number} {name}" for name, number in states.items())


def _each(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def lines(jobs: Collection[Job], spec: Spec) -> list[Line]:
    """Group the jobs into lines by all but their seed. The labels leave out axes with a single value."""
    by_key: dict[tuple[str, ...], Line] = {}
    for job in jobs:
        shown = [short(axis, value) for axis, value in job.axes.items() if axis != "seed" and len(spec.axes[axis]) > 1]
        words = [job.arm, *([job.stage] if len(spec.arms[job.arm].stages) > 1 else []), *shown]
        by_key.setdefault((job.arm, job.stage, *shown), Line(" ".join(words), [])).jobs.append(job)
    return list(by_key.values())


def jobs(
    graph: Graph, spec: Spec, console: Console, predicted: Sequence[Prediction], site: Site, all_jobs: bool = False
) -> None:  # fmt: skip
    """Print the table of a sweep's Runs with their predicted costs: a line per Run with ``all_jobs``, otherwise all seeds together."""
    all_lines = [Line(job.name, [job]) for job in graph.jobs] if all_jobs else lines(graph.jobs, spec)
    shown = all_lines if all_jobs else all_lines[:MOST_LINES]
    counts = f"{counted(len(graph.jobs), 'run')} for {counted(len(graph.cells), 'result')}"
    table, costs = Table(title=f"{spec.name}: {counts} ({spec.file})", title_justify="left"), {p.name: p for p in predicted}
    begun = any(line.state != "not begun" for line in all_lines)
    units = _units(site) if any(p.gpu_hours for p in predicted) else []
    for column in ("run", "objectives", "runs", "epochs", "starts from", GMACS, "images", "time", *units, "state"):
        table.add_column(column, justify="left" if column in ("run", "objectives", "starts from", "state") else "right")
    for line in shown:
        predictions = [costs[job.name] for job in line.jobs if job.name in costs]
        cells = [line.label, line.objectives, "" if all_jobs else str(len(line.jobs)), _each(map(_length, line.jobs))]
        table.add_row(*cells, _each(map(starts_from, line.jobs)), *_sums(predictions, site, len(units)), line.state if begun else "")
    costly, plain = ("starts from", "kWh", GMACS, "images", "kg CO2e", "GPU-hours"), ("objectives", "epochs")
    print_table(table, console, drop=(*plain, *costly) if all_jobs else (*costly, *plain))
    if hidden := all_lines[len(shown) :]:
        omitted = f"{counted(len(hidden), 'more line')} ({counted(sum(len(line.jobs) for line in hidden), 'run')})"
        console.print(f"... {omitted}; {ALL_JOBS} prints every run")
    _not_run(spec, console)


def _not_run(spec: Spec, console: Console) -> None:
    """Print the arms that have no Runs, and why: a line for each reason."""
    arms_of: dict[str, list[str]] = {}
    for name, arm in spec.arms.items():
        if not arm.stages:
            arms_of.setdefault(arm.not_runnable or "numbers that the paper quotes", []).append(name)
    for reason, names in arms_of.items():
        console.print(f"not run: {', '.join(names)} ({reason})")


def _length(job: Job) -> str:
    """Return the length of a run in epochs, and its last step if it is cut to fewer steps."""
    steps = job.run.loop.max_steps
    return str(job.run.loop.epochs) if steps is None else f"{job.run.loop.epochs}, to step {steps}"


def _sums(predicted: list[Prediction], site: Site, amounts: int) -> list[str]:
    """Return the cost cells of a line: MACs per image, images, time and ``amounts`` further ones; empty if nothing was predicted."""
    if not predicted:
        return [""] * (3 + amounts)
    images, hours = sum(p.images for p in predicted), sum(p.hours for p in predicted)
    return [f"{predicted[0].macs / 1e9:.3f}", f"{images:,.0f}", duration(hours * 3600), *_totals(predicted, site)[:amounts]]


def starts_from(job: Job) -> str:
    return ", ".join(parent.stage for parent in job.parents) or ", ".join(checkpoints(job.run).values())


def basis(words: Sequence[str], graph: Graph, launch: Launch, console: Console) -> None:
    """Print what the plan rests on: what each job may take of a cluster, and what the command line sets."""
    arms_of: dict[str, list[str]] = {}
    for job in graph.jobs if launch.executor == "slurm" else ():
        if not job.is_trained:
            arms_of.setdefault(_most(job.resources), []).append(job.arm)
    if arms_of:
        requests = next(iter(arms_of)) if len(arms_of) == 1 else "; ".join(f"{most} ({listed(arms)})" for most, arms in arms_of.items())
        console.print(f"A job takes at most {requests}", soft_wrap=True)
    if launch.executor == "slurm":
        console.print(_report(len(graph.jobs), launch.site), soft_wrap=True)
    if words:
        console.print(f"Set on the command line: {shlex.join(words)}", soft_wrap=True)


def _report(runs: int, site: Site) -> str:
    """Return a line on what the job that makes the report requests."""
    time = site.report.get("time") or str(sbatch.report_min(runs, limits.report_limit_min(site) if cluster.answers() else None))
    options = "".join(f", {name}={value}" for name, value in site.report.items() if name != "time")
    return f"A job of 1 CPU and at most {time}{' min' if time.isdecimal() else ''}{options} makes the report when all others have ended"


def _most(resources: Resources) -> str:
    """Return a request of resources in words, such as 12 hours on 1 GPU."""
    nodes = f"{counted(resources.nodes, 'node')} of " if resources.nodes > 1 else ""
    gpus = counted(resources.gpus_per_node, "GPU") if resources.gpus_per_node else counted(resources.cpus_per_gpu, "CPU")
    return f"{counted(resources.hours, 'hour')} on {nodes}{gpus}"


def runs(graph: Graph, console: Console) -> None:
    """Print the fields of all Runs that differ from the defaults: first the shared ones, then those of each Run."""
    defaults = dotted(dataclasses.asdict(Run()))
    unset = object()  # not None, which is a possible value
    fields = {job.name: {k: v for k, v in dotted(dataclasses.asdict(job.run)).items() if defaults.get(k, unset) != v} for job in graph.jobs}
    first, *rest = fields.values()
    shared = {k: v for k, v in first.items() if all(k in other and other[k] == v for other in rest)}
    _print_fields("every run", shared, console)
    for name, set_fields in fields.items():
        if own_fields := {k: v for k, v in set_fields.items() if k not in shared}:
            _print_fields(name, own_fields, console)


def _print_fields(title: str, fields: dict[str, Any], console: Console) -> None:
    words = (f"{name}={json.dumps(value) if isinstance(value, list) or value is None else value}" for name, value in fields.items())
    console.print(Text.assemble((title, "bold"), f": {' '.join(words)}"), soft_wrap=True)


def state(job: Job) -> str:
    """Return the state of a run before the submission, as its folder tells it; a trained one with evaluators left is "to evaluate"."""
    if job.is_trained:
        return "done" if job.is_done else "to evaluate"
    return read_state(job.folder)


def summary(graph: Graph, predicted: list[Prediction], launch: Launch) -> Iterator[str]:
    """Yield the lines of a dry run's totals: what is to be done, its cost, and how much of the cluster it may take at once."""
    todo, site = [job for job in graph.jobs if not job.is_trained], launch.site
    to_evaluate = sum(job.is_trained and not job.is_done for job in graph.jobs)
    headline = f"{launch.sweep.name}: {len(todo)} of {counted(len(graph.jobs), 'run')} to be done"
    headline += f", and {counted(to_evaluate, 'trained one')} to be evaluated (not predicted)" if to_evaluate else ""
    unpredicted = len(todo) - len(predicted)
    left_out = f"; {unpredicted} cannot be predicted until their shards are built" if unpredicted else ""
    if not predicted:
        yield headline + left_out
        return
    on_gpu = any(p.gpu_hours for p in predicted)
    unknown = sum(p.energy_kwh is None for p in predicted)  # number of runs on CPUs without a measured energy
    shown = ", ".join(
        f"{total} {unit}" for total, unit in zip(_totals(predicted, site), _units(site), strict=True) if on_gpu or total != "0"
    )
    on_cpus = "no GPU-hours, they run on CPUs" + ("" if unknown else f"; {shown}")
    yield f"{headline}; predicted for {len(predicted)}: {shown if on_gpu else on_cpus}{left_out}"
    yield _duration(graph, todo, predicted, launch)
    for basis, number in Counter(p.basis for p in predicted).items():
        yield f"Throughput of {counted(number, 'run')}: {basis}"
    yield f"Times: training, its evaluations, and {START_S:g} s to start each run"
    if on_gpu:
        price = f"{site.price_per_gpu_hour:g} {site.currency} per GPU-hour" if site.price_per_gpu_hour else "no price per GPU-hour"
        yield (
            f"Energy: GPU-hours x {site.gpu_power_w:g} W of board power, CPUs and memory not included; "
            f"{intensity_kg_per_kwh(site):.4g} kg CO2e/kWh; {price}; by the site profile {site.name} (--site)"
        )
    elif unknown:
        yield f"Energy: unknown for {unknown} of {len(predicted)} runs until a first run of their architecture has measured it on the CPU"
    else:
        yield "Energy: as measured by earlier runs of the same architectures, scaled by images"


def _duration(graph: Graph, todo: list[Job], predicted: list[Prediction], launch: Launch) -> str:
    if launch.executor == "local":
        width = len(slots(graph.jobs, launch))
        mode = f"{width} runs side by side" if width > 1 else "One run at a time"
        return f"{mode}: {duration(3600 * hours_here(graph, predicted, width))} from start to end"
    gpus, limit_hours = most_gpus(graph), {job.name: job.resources.hours for job in todo}
    longest, chain = (duration(3600 * hours) for hours in (max(p.hours for p in predicted), longest_chain_hours(graph, predicted)))
    n_late = sum(p.hours > limit_hours[p.name] for p in predicted)
    requeued = f"; longer than resources.hours for {counted(n_late, 'run')}, which will be requeued and continued" if n_late else ""
    throttled = f"; {launch.site.max_parallel} jobs of each array at a time" if launch.site.max_parallel else ""
    ends = f"{longest} for the longest run, {chain} for the longest chain of runs{requeued}"
    return f"At most {counted(gpus, 'GPU')} at once{throttled}; {ends}"


def _units(site: Site) -> list[str]:
    return ["GPU-hours", "kWh", "kg CO2e", *([site.currency] if site.price_per_gpu_hour else [])]


def _totals(predicted: Sequence[Prediction], site: Site) -> list[str]:
    """Return the total for each of `_units`; unknown amounts count as 0."""
    amounts = [[p.gpu_hours, p.energy_kwh or 0.0, p.co2e_kg or 0.0, p.money] for p in predicted]
    totals = [sum(values) for values in zip(*amounts, strict=True)][: len(_units(site))]
    return [f"{total:,.0f}" if total >= 1000 else f"{total:.3g}" for total in totals]
