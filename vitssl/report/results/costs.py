"""What training costs against the baseline: multiply-adds, which are exact, then energy and hours where they may be believed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean
from typing import Any

from vitssl.report.results.collect import Cell, RunFolder
from vitssl.report.results.energy import metered
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row, costs_of
from vitssl.report.results.schedule import training_macs
from vitssl.report.results.stats import std

ALIKE = 1.3  # hours of equal runs that differ by a larger factor say more about the machine than about the method
UNEQUAL = 1.1  # times the lowest multiply-adds: what is not of equal cost
WORKED = 0.7  # the least share of its time that a CPU works on a training that nothing disturbs
LEFT = 0.8  # the least share of the cores for its threads that other work may leave to a training on CPUs
MOST_NAMED = 4  # arms whose costs a sentence lists


@dataclass(frozen=True)
class Ratio:
    """A cost relative to the baseline's, with its standard deviation over seeds where there are several."""

    value: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f}x" + (f" ± {self.spread:.2f}" if self.spread is not None else "")


def macs(cells: list[Cell]) -> float | None:
    """Multiply-adds of a model's training, all stages, mean over its finished seeds; None without any."""
    return mean(map(training_macs, cells)) if cells else None


def macs_ratio(grid: Grid, row: Row, column: Any) -> Ratio | None:
    """Multiply-adds of training relative to the baseline's; None without a finished model of each."""
    own, base = map(macs, _pair(grid, row, column))
    return Ratio(own / base) if own is not None and base else None


def ratio(grid: Grid, row: Row, column: Any, cost: str) -> Ratio | None:
    """A measured cost relative to the baseline's; None without a finished model of each."""
    parts = [[spent[cost] for spent in costs_of(cells)] for cells in _pair(grid, row, column)]
    if not all(part and all(part) for part in parts):
        return None
    value, spreads = mean(parts[0]) / mean(parts[1]), [std(part) for part in parts]
    if None in spreads:
        return Ratio(value)
    relative = [(spread or 0.0) / mean(part) for spread, part in zip(spreads, parts, strict=True)]
    return Ratio(value, value * sum(share**2 for share in relative) ** 0.5)


def _pair(grid: Grid, row: Row, column: Any) -> tuple[list[Cell], list[Cell]]:
    """The finished models of a row and of its baseline."""
    base = grid.baseline(row)
    return row.finished(column), base.finished(column) if base else []


# ------------------------------------------------------------------------------------------------- may it be believed?


def doubt(grid: Grid, column: Any) -> str:
    """Why the hours and energy of a column's models are not compared; empty where nothing speaks against it."""
    for row in grid.rows:
        done = row.finished(column)
        hours = [hours for cost in costs_of(done) if (hours := cost["device_hours"])]
        if hours and max(hours) > ALIKE * min(hours):
            return f"one run of {grid.label(row)} took {max(hours) / min(hours):.1f} times as long as an equal one"
        models = [[run for _, run in cell.stages] for cell in done]  # all stages at once: one that is short costs its model little
        shares = [share for runs in models if (share := worked(runs)) is not None]
        if shares and min(shares) < WORKED:
            return f"the CPU worked on a model of {grid.label(row)} for only {math.floor(100 * min(shares))}% of its training time"
        left = [cores for runs in models if (cores := cores_left(runs)) is not None]
        if left and min(left) < LEFT:
            return f"other programs took {1 - min(left):.0%} of the cores meant for training {grid.label(row)}"
    return ""


def doubted(grid: Grid) -> str:
    """The same of all columns: the first reason."""
    return next(filter(None, (doubt(grid, column) for column in grid.columns)), "")


def not_compared(grid: Grid, why: bool = False) -> str:
    """A sentence that measured hours and energy do not compare the arms, and why; empty where nothing speaks against it."""
    reason = doubted(grid)
    return f" Measured hours and energy are not comparable between arms{f': {reason}' if why else ''}." if reason else ""


def worked(runs: Iterable[RunFolder]) -> float | None:
    """The CPU time of the runs' processes relative to their duration, on CPUs; None on GPUs, which do not need one all the time."""
    records = [record for run in runs for record in run.emissions if not record["gpus"]]
    duration_s = sum(record["duration_s"] for record in records)
    return sum(record["cpu_time_s"] for record in records) / duration_s if duration_s else None


def cores_left(runs: Iterable[RunFolder]) -> float | None:
    """What other work left to runs on CPUs of the cores that they have threads for and may use; None on GPUs."""
    left_s = wanted_s = 0.0
    for run in runs:
        threads = run.run["loop"]["threads"] * max(1, run.job.get("gpus_per_node", 1))  # of all processes of a node
        # of all attempts: one that was stopped at once says little
        for r in (r for r in run.emissions if not r["gpus"]):
            left_s += r["cores"] * r["duration_s"] - r["other_cpu_time_s"]
            wanted_s += min(r["cores"], threads) * r["duration_s"]
    # what is left of a busy machine by the clocks of two counters may be a little below nothing
    return max(0.0, left_s / wanted_s) if wanted_s else None


def images_per_s(grid: Grid, cell: Cell) -> tuple[float, float | None]:
    """Inference speed of a model, and the width of the middle half of its batches: by the fastest measurement of an equal network on
    an equal device, so that equal networks have one speed. Whatever disturbs one makes it slower, and may do so evenly."""
    network = _network(cell.last)
    costs = [run.cost for run in grid.sweep.runs.values() if run.cost and _network(run) == network]
    fastest = max(costs, key=lambda cost: cost["inference_images_per_s"])
    return fastest["inference_images_per_s"], fastest.get("inference_spread")


def _network(run: RunFolder) -> tuple[Any, ...]:
    """What equal networks on equal devices have in common."""
    names = ("params_inference", "macs_inference", "activations_inference", "precision", "inference_device", "inference_batch_size")
    how = [run.run[part].get(field) for part, field in (("loop", "threads"), ("loop", "compile"), ("backbone", "fused_attention"))]
    return (*(run.cost.get(name) for name in names), *how, *(event.get("device") for event in run.of("start")[-1:]))


def comparison(grid: Grid, column: Any) -> str:
    """Costs of a column's arms against their baselines, in words."""
    exact = {grid.label(row): value for row in grid.rows if (value := macs_ratio(grid, row, column))}
    if not exact:
        return ""
    takes = f"Training takes {_listed(exact)} the multiply-adds of {grid.baselines()}"
    if reason := doubt(grid, column):
        return grid.placed(column, f"{takes}. Energy and hours are not compared, since {reason}.")
    measured = {"energy_kwh": "energy", "device_hours": "time"} if metered(grid.sweep) else {"device_hours": "time"}
    for cost, unit in measured.items():
        if ratios := {grid.label(row): value for row in grid.rows if (value := ratio(grid, row, column, cost))}:
            takes += f"; {_listed(ratios)} the {unit}"
    return grid.placed(column, f"{takes}.")


def _listed(values: dict[str, Ratio]) -> str:
    """Of many arms the lowest and the highest."""
    if len(values) > MOST_NAMED:
        (least, low), *_, (most, high) = sorted(values.items(), key=lambda item: item[1].value)
        return f"from {low} ({least}) to {high} ({most})"
    return ", ".join(f"{value} ({label})" for label, value in values.items())
