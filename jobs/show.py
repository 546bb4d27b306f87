"""What the launcher prints: tables of jobs and of predicted cost."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobs.folders import error_of, is_done
from jobs.graph import Graph, Job
from jobs.predict import Prediction
from jobs.sweep import Spec
from vitssl.config import Run, Site
from vitssl.emissions import intensity_kg_per_kwh


def jobs(graph: Graph, spec: Spec, console: Console) -> None:
    """Every Run of the sweep: what it is, where it goes, what it starts from."""
    table = Table(title=f"{spec.name}: {len(graph.jobs)} runs for {len(graph.cells)} cells ({spec.file})", title_justify="left")
    for column in ("run", "stage", "epochs", "starts from", "state"):
        table.add_column(column, overflow="fold")
    for job in graph.jobs:
        parents = ", ".join(parent.stage for parent in job.parents) or (job.run.init_from or "")
        table.add_row(job.name, job.stage, str(job.run.loop.epochs), parents, state(job))
    console.print(table)
    for name, arm in spec.arms.items():
        if not arm.stages:
            console.print(f"{name}: not run: {arm.not_runnable or 'a number that the paper quotes'}", highlight=False)


def runs(graph: Graph, console: Console) -> None:
    """The fields of every Run that are not the defaults: those that all share once, then each Run's own."""
    defaults = _flat(dataclasses.asdict(Run()))
    fields = {job.name: {k: v for k, v in _flat(dataclasses.asdict(job.run)).items() if defaults.get(k) != v} for job in graph.jobs}
    first, *rest = fields.values()
    shared = {k: v for k, v in first.items() if all(k in other and other[k] == v for other in rest)}
    _print_fields("every run", shared, console)
    for name, own in fields.items():
        _print_fields(name, {k: v for k, v in own.items() if k not in shared}, console)


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted names."""
    flat = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _print_fields(title: str, fields: dict[str, Any], console: Console) -> None:
    words = (f"{name}={json.dumps(value) if isinstance(value, list) else value}" for name, value in fields.items())
    console.print(f"[bold]{escape(title)}[/bold]: {escape(' '.join(words))}", soft_wrap=True, highlight=False)


def state(job: Job) -> str:
    if is_done(job):
        return "done"
    if error_of(job.folder) is not None:
        return "failed before"
    return "begun" if (job.folder / "last.pt").exists() else "new"


def predictions(found: list[Prediction], site: Site, console: Console) -> None:
    """The predicted cost of what is not done yet, and what the prediction stands on."""
    table = Table(title="Predicted cost of the runs that are not done", title_justify="left")
    for column in ("run", "GMACs/image", "images", "GPU-hours", "kWh", "kg CO2e", site.currency):
        table.add_column(column, justify="left" if column == "run" else "right")
    for p in found:
        table.add_row(p.name, f"{p.macs / 1e9:.3f}", f"{p.images:,.0f}", *(f"{value:.3g}" for value in _amounts(p)))
    totals = [sum(values) for values in zip(*(_amounts(p) for p in found), strict=True)] or [0.0] * 4
    table.add_section()
    table.add_row("total", "", "", *(f"{value:.3g}" for value in totals), style="bold")
    console.print(table)
    for basis in dict.fromkeys(p.basis for p in found):
        console.print(f"Throughput: {basis}", highlight=False)
    console.print(
        f"Energy: GPU-hours x {site.gpu_power_w:g} W of board power, CPUs and memory not included; "
        f"{intensity_kg_per_kwh(site):.4g} kg CO2e/kWh; "
        f"{site.price_per_gpu_hour:g} {site.currency} per GPU-hour.",
        highlight=False,
    )


def _amounts(p: Prediction) -> tuple[float, float, float, float]:
    return p.gpu_hours, p.energy_kwh, p.co2e_kg, p.money
