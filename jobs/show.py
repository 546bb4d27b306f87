"""What the launcher prints: tables of jobs and of predicted cost."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from jobs.folders import Launch, error_of, is_done, is_trained
from jobs.graph import Graph, Job
from jobs.predict import START_S, Prediction, longest_chain_hours, most_gpus
from jobs.sweep import Spec
from vitssl.config import Run, Site, checkpoints, dotted
from vitssl.emissions import intensity_kg_per_kwh
from vitssl.words import counted


def jobs(graph: Graph, spec: Spec, console: Console) -> None:
    """Every Run of the sweep: what it is, where it goes, what it starts from."""
    counts = f"{counted(len(graph.jobs), 'run')} for {counted(len(graph.cells), 'cell')}"
    table = Table(title=f"{spec.name}: {counts} ({spec.file})", title_justify="left")
    for column in ("run", "stage", "epochs", "starts from", "state"):
        table.add_column(column)
    for job in graph.jobs:
        parents = ", ".join(parent.stage for parent in job.parents) or ", ".join(checkpoints(job.run).values())
        table.add_row(job.name, job.stage, str(job.run.loop.epochs), parents, state(job))
    print_table(table, console, drop=("stage", "starts from", "epochs"))
    for name, arm in spec.arms.items():
        if not arm.stages:
            console.print(f"{name}: not run: {arm.not_runnable or 'a number that the paper quotes'}", highlight=False)


def runs(graph: Graph, console: Console) -> None:
    """The fields of every Run that are not the defaults: shared ones once, then those of each Run."""
    defaults = dotted(dataclasses.asdict(Run()))
    unset = object()  # null is a value
    fields = {job.name: {k: v for k, v in dotted(dataclasses.asdict(job.run)).items() if defaults.get(k, unset) != v} for job in graph.jobs}
    first, *rest = fields.values()
    shared = {k: v for k, v in first.items() if all(k in other and other[k] == v for other in rest)}
    _print_fields("every run", shared, console)
    for name, set_fields in fields.items():
        if different := {k: v for k, v in set_fields.items() if k not in shared}:
            _print_fields(name, different, console)


def _print_fields(title: str, fields: dict[str, Any], console: Console) -> None:
    words = (f"{name}={json.dumps(value) if isinstance(value, list) or value is None else value}" for name, value in fields.items())
    console.print(f"[bold]{escape(title)}[/bold]: {escape(' '.join(words))}", soft_wrap=True, highlight=False)


def state(job: Job) -> str:
    if is_done(job):
        return "done"
    if error_of(job.folder) is not None:
        return "failed before"
    if is_trained(job):
        return "to evaluate"
    return "begun" if (job.folder / "last.pt").exists() else "new"


def summary(graph: Graph, predicted: list[Prediction], launch: Launch, console: Console) -> None:
    """The totals of a dry run: what is to be done, its cost, and how much of the cluster it may take at once."""
    todo, site = [job for job in graph.jobs if not is_trained(job)], launch.site
    to_evaluate = sum(is_trained(job) and not is_done(job) for job in graph.jobs)
    unpredicted = len(todo) - len(predicted)
    left_out = f"; {unpredicted} more cannot be predicted before their shards are built" if unpredicted else ""
    verb = "is" if 1 in (len(todo), len(graph.jobs)) else "are"
    begins = f"{launch.sweep.name}: {len(todo)} of {counted(len(graph.jobs), 'run')} {verb} to be done"
    begins += f", and {to_evaluate} that are trained to be evaluated, each on one GPU at most (not predicted)" if to_evaluate else ""
    if not predicted:
        unknown = "; their cost cannot be predicted before their shards are built" if todo else ""
        console.print(begins + unknown, soft_wrap=True, highlight=False)
        return
    on_gpu = any(p.gpu_hours for p in predicted)
    totals = [sum(values) for values in zip(*(_amounts(p, site) for p in predicted), strict=True)]
    amounts = ", ".join(f"{_shown(total)} {unit}" for total, unit in zip(totals, _units(site), strict=True) if on_gpu or total)
    price = f"{site.price_per_gpu_hour:g} {site.currency} per GPU-hour" if site.price_per_gpu_hour else "no price per GPU-hour"
    lines = [
        f"{begins}; predicted for {len(predicted)}: {amounts if on_gpu else _of_cpus(predicted, amounts)}{left_out}",
        _duration(graph, todo, predicted, launch),
        *(f"Throughput: {basis}" for basis in dict.fromkeys(p.basis for p in predicted)),
        f"Hours: training, its evaluations, and {START_S:g} s to start each run",
        f"Energy: GPU-hours x {site.gpu_power_w:g} W of board power, CPUs and memory not included; "
        f"{intensity_kg_per_kwh(site):.4g} kg CO2e/kWh; {price}; by the site profile {site.name} (--site takes yours)"
        if on_gpu
        else _energy_of_cpus(predicted),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _energy_of_cpus(predicted: list[Prediction]) -> str:
    unknown = sum(p.energy_kwh is None for p in predicted)
    if not unknown:
        return "Energy: what earlier runs of the same architectures measured, by images"
    still = f"{counted(unknown, 'run')} of {len(predicted)}"
    return f"Energy: a CPU's is known once a run of the architecture has measured it, and not yet for {still}"


def _of_cpus(predicted: list[Prediction], amounts: str) -> str:
    return f"no GPU-hours, they run on CPUs{'' if any(p.energy_kwh is None for p in predicted) else f'; {amounts}'}"


def _duration(graph: Graph, todo: list[Job], predicted: list[Prediction], launch: Launch) -> str:
    if launch.executor == "local":
        return f"One run at a time: {_shown(sum(p.hours for p in predicted))} hours from start to end"
    gpus, limits = most_gpus(graph), {job.name: job.resources.hours for job in todo}
    longest, chain = _shown(max((p.hours for p in predicted), default=0.0)), _shown(longest_chain_hours(graph, predicted))
    late = sum(p.hours > limits[p.name] for p in predicted)
    requeued = f"; {late} need longer than resources.hours, and go on after a requeue" if late else ""
    return f"At most {counted(gpus, 'GPU')} at once; {longest} hours for the longest run, {chain} for the longest chain of runs{requeued}"


def predictions(predicted: list[Prediction], site: Site, console: Console) -> None:
    """The predicted cost of every run that is not done yet, where any can be predicted."""
    if not predicted:
        return
    table = Table(title="Predicted cost of the runs that are not done", title_justify="left")
    on_gpu = any(p.gpu_hours for p in predicted)
    amounts = _units(site) if on_gpu else []
    for column in ("run", "GMACs/image", "images", "hours", *amounts):
        table.add_column(column, justify="left" if column == "run" else "right")
    for p in predicted:
        cost = map(_shown, _amounts(p, site)) if on_gpu else ()
        table.add_row(p.name, f"{p.macs / 1e9:.3f}", f"{p.images:,.0f}", _shown(p.hours), *cost)
    print_table(table, console, drop=("images", "GMACs/image", "kWh"))


def _units(site: Site) -> list[str]:
    return ["GPU-hours", "kWh", "kg CO2e", *([site.currency] if site.price_per_gpu_hour else [])]


def _amounts(p: Prediction, site: Site) -> list[float]:
    """One amount for each of `_units`, 0 where it is not known; money only where the site has a price."""
    return [p.gpu_hours, p.energy_kwh or 0.0, p.co2e_kg or 0.0, *([p.money] if site.price_per_gpu_hour else [])]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def print_table(table: Table, console: Console, drop: Sequence[str] = ()) -> None:
    """Print a table with as many columns as fit the terminal, or the 80 columns of a pipe: without those that are empty, and then without
    those of ``drop``, the first one first. What is too wide even so wraps whole lines rather than the names of runs."""
    columns = [column for column in table.columns if not table.row_count or any(column.cells)]
    left_out: list[str] = []
    needed = whole = _width(_of_columns(table, columns))
    for header in drop:
        if needed > console.width and any(column.header == header for column in columns):
            columns = [column for column in columns if column.header != header]
            left_out.append(header)
            needed = _width(_of_columns(table, columns))
    wide = Console(file=console.file, width=max(needed, console.width), force_terminal=console.is_terminal)
    wide.print(_of_columns(table, columns))
    if left_out:
        wide.print(f"COLUMNS={whole} shows {' and '.join(left_out)} too", style="dim", highlight=False)


def _of_columns(table: Table, columns: Sequence[Column]) -> Table:
    """A table of some of the columns."""
    narrow = Table(title=table.title, title_justify=table.title_justify)
    for column in columns:
        narrow.add_column(column.header, justify=column.justify)
    for cells in zip(*(column.cells for column in columns), strict=True):
        narrow.add_row(*cells)
    return narrow


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum
