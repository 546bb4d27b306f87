"""What the launcher prints: the runs of a sweep, and their predicted cost."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs import cluster, limits, sbatch
from jobs.folders import Launch, error_of, is_done, is_trained
from jobs.graph import Graph, Job, short
from jobs.predict import START_S, Prediction, hours_here, longest_chain_hours, most_gpus
from jobs.slots import slots
from jobs.sweep import Spec
from jobs.tables import print_table
from vitssl.config import Run, Site, active, checkpoints, dotted
from vitssl.config.sweep import Resources
from vitssl.emissions import intensity_kg_per_kwh
from vitssl.words import counted, duration, listed

MOST_LINES = 30  # of the table of a sweep, unless every job is asked for
ALL_JOBS = "--all-jobs"
GMACS = "GMACs/image, step"  # forward and backward


@dataclass
class Line:
    """Runs that differ in their seed alone."""

    label: str
    jobs: list[Job]

    @property
    def starts_from(self) -> str:
        return ", ".join(dict.fromkeys(starts_from(job) for job in self.jobs))

    @property
    def objectives(self) -> str:
        return ", ".join(dict.fromkeys(" + ".join(active(job.run.objectives)) for job in self.jobs))

    @property
    def state(self) -> str:
        """Such as new, or 1 done, 2 new."""
        states = Counter(state(job) for job in self.jobs)
        return next(iter(states)) if len(states) == 1 else ", ".join(f"{number} {name}" for name, number in states.items())


def lines(jobs: Collection[Job], spec: Spec) -> list[Line]:
    """The jobs, those that differ in their seed alone together; named without the axes of a single value."""
    made: dict[tuple[str, ...], Line] = {}
    for job in jobs:
        shown = [short(axis, value) for axis, value in job.axes.items() if axis != "seed" and len(spec.axes[axis]) > 1]
        words = [job.arm, *([job.stage] if len(spec.arms[job.arm].stages) > 1 else []), *shown]
        made.setdefault((job.arm, job.stage, *shown), Line(" ".join(words), [])).jobs.append(job)
    return list(made.values())


def jobs(graph: Graph, spec: Spec, console: Console, predicted: Sequence[Prediction] = (), site: Site | None = None) -> None:
    """The Runs of the sweep, a line for those that differ in their seed alone, with the sums of their predicted costs."""
    of_all, table, costs = lines(graph.jobs, spec), _table(graph, spec), {p.name: p for p in predicted}
    begun = any(line.state != "new" for line in of_all)
    units = _units(site) if site is not None and any(p.gpu_hours for p in predicted) else []
    for column in ("run", "objectives", "runs", "epochs", "starts from", GMACS, "images", "time", *units, "state"):
        table.add_column(column, justify="left" if column in ("run", "objectives", "starts from", "state") else "right")
    for line in of_all[:MOST_LINES]:
        known = [costs[job.name] for job in line.jobs if job.name in costs]
        epochs = ", ".join(dict.fromkeys(_length(job) for job in line.jobs))
        what = [line.label, line.objectives, str(len(line.jobs)), epochs, line.starts_from]
        table.add_row(*what, *_sums(known, site, len(units)), line.state if begun else "")
    print_table(table, console, drop=("starts from", "kWh", GMACS, "images", "kg CO2e", "GPU-hours", "objectives", "epochs"))
    if left := of_all[MOST_LINES:]:
        more = f"{counted(len(left), 'more line')} ({counted(sum(len(line.jobs) for line in left), 'run')})"
        console.print(f"... {more}; {ALL_JOBS} prints every run", highlight=False)
    _not_run(spec, console)


def _length(job: Job) -> str:
    """Of a run, in epochs unless it is cut to fewer steps."""
    steps = job.run.loop.max_steps
    return str(job.run.loop.epochs) if steps is None else f"{job.run.loop.epochs}, to step {steps}"


def _sums(predicted: list[Prediction], site: Site | None, amounts: int) -> list[str]:
    """Of the runs of a line: multiply-adds per image, images, time and further amounts; empty where none can be predicted."""
    if not predicted or site is None:
        return [""] * (3 + amounts)
    costs = [sum(values) for values in zip(*(_amounts(p, site) for p in predicted), strict=True)][:amounts]
    images, hours = sum(p.images for p in predicted), sum(p.hours for p in predicted)
    return [f"{predicted[0].macs / 1e9:.3f}", f"{images:,.0f}", duration(hours * 3600), *map(_shown, costs)]


def every_job(graph: Graph, spec: Spec, console: Console) -> None:
    """Every Run of the sweep: its folder, what it is, what it starts from."""
    table = _table(graph, spec)
    for column in ("run", "stage", "epochs", "starts from", "state"):
        table.add_column(column)
    for job in graph.jobs:
        table.add_row(job.name, job.stage, _length(job), starts_from(job), state(job))
    print_table(table, console, drop=("stage", "starts from", "epochs"))
    _not_run(spec, console)


def _not_run(spec: Spec, console: Console) -> None:
    """The arms that have no Runs, and why: a line for each reason."""
    arms_of: dict[str, list[str]] = {}
    for name, arm in spec.arms.items():
        if not arm.stages:
            arms_of.setdefault(arm.not_runnable or "numbers that the paper quotes", []).append(name)
    for reason, names in arms_of.items():
        console.print(f"not run: {', '.join(names)} ({reason})", highlight=False)


def _table(graph: Graph, spec: Spec) -> Table:
    counts = f"{counted(len(graph.jobs), 'run')} for {counted(len(graph.cells), 'result')}"
    return Table(title=f"{spec.name}: {counts} ({spec.file})", title_justify="left")


def starts_from(job: Job) -> str:
    return ", ".join(parent.stage for parent in job.parents) or ", ".join(checkpoints(job.run).values())


def basis(words: Sequence[str], graph: Graph, launch: Launch, console: Console) -> None:
    """What the plan rests on: what a job may take of a cluster, and what the command line sets."""
    arms_of: dict[str, list[str]] = {}
    for job in graph.jobs if launch.executor == "slurm" else ():
        if not is_trained(job):
            arms_of.setdefault(_most(job.resources), []).append(job.arm)
    if arms_of:
        each = next(iter(arms_of)) if len(arms_of) == 1 else "; ".join(f"{most} ({listed(arms)})" for most, arms in arms_of.items())
        console.print(f"A job takes at most {each}", soft_wrap=True, highlight=False)
    if launch.executor == "slurm":
        console.print(_report(len(graph.jobs), launch.site), soft_wrap=True, highlight=False)
    if words:
        console.print(f"Set by the command line: {shlex.join(words)}", soft_wrap=True, highlight=False)


def _report(runs: int, site: Site) -> str:
    """What the job that makes the report asks for."""
    time = site.report.get("time") or str(sbatch.report_min(runs, limits.report_min(site) if cluster.answers() else None))
    options = "".join(f", {name}={value}" for name, value in site.report.items() if name != "time")
    return (
        f"The report is made by a job of 1 CPU and at most {time}{' min' if time.isdecimal() else ''}{options}, when all others have ended"
    )


def _most(resources: Resources) -> str:
    """In words: 12 hours on 1 GPU."""
    nodes = f"{counted(resources.nodes, 'node')} of " if resources.nodes > 1 else ""
    gpus = counted(resources.gpus_per_node, "GPU") if resources.gpus_per_node else counted(resources.cpus_per_gpu, "CPU")
    return f"{counted(resources.hours, 'hour')} on {nodes}{gpus}"


def hint(launch: Launch, console: Console) -> None:
    """The last line of a dry run."""
    scripts = " and sbatch scripts" if launch.executor == "slurm" else ""
    line = f"Costs are of all runs of a line. {ALL_JOBS} prints every run, with its fields{scripts}"
    console.print(line, soft_wrap=True, highlight=False)


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
    console.print(Text.assemble((title, "bold"), f": {' '.join(words)}"), soft_wrap=True)


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
    trained = counted(to_evaluate, "trained one")
    where = ", each on one GPU at most" if launch.executor == "slurm" else ""
    begins += f", and {trained} to be evaluated{where} (not predicted)" if to_evaluate else ""
    if not predicted:
        unknown = "; their cost cannot be predicted before their shards are built" if todo else ""
        console.print(begins + unknown, soft_wrap=True, highlight=False)
        return
    on_gpu = any(p.gpu_hours for p in predicted)
    totals = [sum(values) for values in zip(*(_amounts(p, site) for p in predicted), strict=True)]
    amounts = ", ".join(f"{_shown(total)} {unit}" for total, unit in zip(totals, _units(site), strict=True) if on_gpu or total)
    yours = " (--site takes yours)" if site.name == Site.name else ""
    price = f"{site.price_per_gpu_hour:g} {site.currency} per GPU-hour" if site.price_per_gpu_hour else "no price per GPU-hour"
    lines = [
        f"{begins}; predicted for {len(predicted)}: {amounts if on_gpu else _of_cpus(predicted, amounts)}{left_out}",
        _duration(graph, todo, predicted, launch),
        *_throughput(predicted),
        f"Times: training, its evaluations, and {START_S:g} s to start each run",
        f"Energy: GPU-hours x {site.gpu_power_w:g} W of board power, CPUs and memory not included; "
        f"{intensity_kg_per_kwh(site):.4g} kg CO2e/kWh; {price}; by the site profile {site.name}{yours}"
        if on_gpu
        else _energy_of_cpus(predicted),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _throughput(predicted: list[Prediction]) -> list[str]:
    """Where it comes from; where that differs, of how many runs each is."""
    of = Counter(p.basis for p in predicted)
    if len(of) == 1:
        return [f"Throughput: {next(iter(of))}"]
    return [f"Throughput of {counted(number, 'run')}: {basis}" for basis, number in of.items()]


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
        width = len(slots(graph.jobs, launch))
        how = f"{width} runs side by side" if width > 1 else "One run at a time"
        return f"{how}: {duration(3600 * hours_here(graph, predicted, width))} from start to end"
    gpus, limits = most_gpus(graph), {job.name: job.resources.hours for job in todo}
    longest, chain = (duration(3600 * hours) for hours in (max(p.hours for p in predicted), longest_chain_hours(graph, predicted)))
    late = sum(p.hours > limits[p.name] for p in predicted)
    requeued = f"; longer than resources.hours for {counted(late, 'run')}, going on after a requeue" if late else ""
    throttled = f"; {launch.site.max_parallel} jobs of each array at a time" if launch.site.max_parallel else ""
    ends = f"{longest} for the longest run, {chain} for the longest chain of runs{requeued}"
    return f"At most {counted(gpus, 'GPU')} at once{throttled}; {ends}"


def predictions(predicted: list[Prediction], site: Site, console: Console) -> None:
    """The predicted cost of every run that is not done yet, where any can be predicted."""
    if not predicted:
        return
    table = Table(title="Predicted cost of the runs that are not done", title_justify="left")
    on_gpu = any(p.gpu_hours for p in predicted)
    amounts = _units(site) if on_gpu else []
    for column in ("run", GMACS, "images", "time", *amounts):
        table.add_column(column, justify="left" if column == "run" else "right")
    for p in predicted:
        cost = map(_shown, _amounts(p, site)) if on_gpu else ()
        table.add_row(p.name, f"{p.macs / 1e9:.3f}", f"{p.images:,.0f}", duration(p.hours * 3600), *cost)
    print_table(table, console, drop=("images", GMACS, "kWh"))


def _units(site: Site) -> list[str]:
    return ["GPU-hours", "kWh", "kg CO2e", *([site.currency] if site.price_per_gpu_hour else [])]


def _amounts(p: Prediction, site: Site) -> list[float]:
    """One amount for each of `_units`, 0 where it is not known; money only where the site has a price."""
    return [p.gpu_hours, p.energy_kwh or 0.0, p.co2e_kg or 0.0, *([p.money] if site.price_per_gpu_hour else [])]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
