"""What training costs relative to the baseline: multiply-adds, which are exact, and energy and hours if they can be trusted."""

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
from vitssl.words import few

MAX_HOURS_RATIO = 1.3  # if the hours of equal runs differ by a larger factor, they say more about the machine than about the method
UNEQUAL = 1.1  # times the lowest: multiply-adds, or shares of a node, above this are not equal
MIN_CPU_SHARE = 0.7  # the smallest share of its time that a CPU works on an undisturbed training
MIN_CORES_LEFT = 0.8  # the smallest share of its cores that other work may leave to a training on CPUs
MOST_NAMED = 4  # the most arms whose costs a sentence lists


@dataclass(frozen=True)
class Ratio:
    """A cost relative to the baseline's, with its standard deviation over seeds if there are several."""

    value: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f}x" + (f" ± {self.spread:.2f}" if self.spread is not None else "")


def macs(cells: list[Cell]) -> float | None:
    """Return the multiply-adds of a model's training over all stages, mean over its finished seeds; None if there are none."""
    return mean(map(training_macs, cells)) if cells else None


def macs_ratio(grid: Grid, row: Row, column: Any) -> Ratio | None:
    """Return the multiply-adds of training relative to the baseline's; None without a finished model of each."""
    own, base = map(macs, _pair(grid, row, column))
    return Ratio(own / base) if own is not None and base else None


def ratio(grid: Grid, row: Row, column: Any, cost: str) -> Ratio | None:
    """Return a measured cost relative to the baseline's; None without a finished model of each."""
    parts = [[spent[cost] for spent in costs_of(cells)] for cells in _pair(grid, row, column)]
    if not all(part and all(part) for part in parts):
        return None
    value, spreads = mean(parts[0]) / mean(parts[1]), [std(part) for part in parts]
    if None in spreads:
        return Ratio(value)
    relative = [(spread or 0.0) / mean(part) for spread, part in zip(spreads, parts, strict=True)]
    return Ratio(value, value * sum(share**2 for share in relative) ** 0.5)


def _pair(grid: Grid, row: Row, column: Any) -> tuple[list[Cell], list[Cell]]:
    """Return the finished models of a row, and those of its baseline."""
    base = grid.baseline(row)
    return row.finished(column), base.finished(column) if base else []


# ------------------------------------------------------------------------------------------------- may it be believed?


def doubt(grid: Grid, column: Any) -> str:
    """Return why the hours and energy of a column's models are not compared; empty if nothing speaks against comparing them."""
    for row in grid.rows:
        done = row.finished(column)
        hours = [hours for cost in costs_of(done) if (hours := cost["device_hours"])]
        if hours and max(hours) > MAX_HOURS_RATIO * min(hours):
            return f"one run of {grid.label(row)} took {max(hours) / min(hours):.1f} times as long as an equal one"
        models = [[run for _, run in cell.stages] for cell in done]  # all stages together: a short one costs its model little
        shares = [share for runs in models if (share := worked(runs)) is not None]
        if shares and min(shares) < MIN_CPU_SHARE:
            return f"the CPU worked on a model of {grid.label(row)} for only {math.floor(100 * min(shares))}% of its training time"
        free_shares = [cores for runs in models if (cores := cores_left(runs)) is not None]
        if free_shares and min(free_shares) < MIN_CORES_LEFT:
            return f"other programs took {1 - min(free_shares):.0%} of the cores meant for training {grid.label(row)}"
    return _unequal_shares(run for row in grid.rows for cell in row.finished(column) for _, run in cell.stages)


def _unequal_shares(runs: Iterable[RunFolder]) -> str:
    """Return why the energy of runs on CPUs does not compare them: they were charged unequal shares of their nodes; otherwise empty.

    On GPUs these shares are of the smaller part of the energy.
    """
    shares = {record["node_share"] for run in runs for record in run.emissions if not record["gpus"]}
    if not shares or max(shares) <= UNEQUAL * min(shares):
        return ""
    return f"runs on CPUs had from {min(shares):.0%} to {max(shares):.0%} of their node, and were charged that part of its energy"


def any_doubt(grid: Grid) -> str:
    """Return the first reason in any column not to compare hours and energy; empty if there is none."""
    return next(filter(None, (doubt(grid, column) for column in grid.columns)), "")


def caveats(grid: Grid, why: bool = False) -> str:
    """Return the sentences on what to know of measured costs: `fewer_seeds` and `not_compared`."""
    lost = fewer_seeds(grid)
    return (f" {lost[0].upper()}{lost[1:]}." if lost else "") + not_compared(grid, why)


def not_compared(grid: Grid, why: bool = False) -> str:
    """Return a sentence that hours and energy are not comparable between arms, with the reason if ``why``; empty if they are."""
    reason = any_doubt(grid)
    return f" Measured hours and energy are not comparable between arms{f': {reason}' if why else ''}." if reason else ""


def fewer_seeds(grid: Grid) -> str:
    """Return a clause on the models whose measured costs are means of fewer seeds than have finished; empty if there are none."""
    counts = {grid.model_name(row, column): (len(costs_of(done)), len(done)) for row, column, done in grid.models()}
    partly = [f"{model} ({known} of {finished})" for model, (known, finished) in counts.items() if 0 < known < finished]
    return f"energy records are missing, so measured costs are means over fewer seeds for {few(partly)}" if partly else ""


def worked(runs: Iterable[RunFolder]) -> float | None:
    """Return the CPU time of runs on CPUs relative to their duration; None on GPUs, whose runs do not need a CPU all the time."""
    records = [record for run in runs for record in run.emissions if not record["gpus"]]
    duration_s = sum(record["duration_s"] for record in records)
    return sum(record["cpu_time_s"] for record in records) / duration_s if duration_s else None


def cores_left(runs: Iterable[RunFolder]) -> float | None:
    """Return the share of their cores that other work left to runs on CPUs; None on GPUs.

    Their cores are those that they may use, as far as they have threads for them.
    """
    left_s = wanted_s = 0.0
    for run in runs:
        threads = run.config.loop.threads * max(1, run.job.get("gpus_per_node", 1))  # over all processes of a node
        # over all attempts: one that stopped at once says little
        for r in (r for r in run.emissions if not r["gpus"]):
            left_s += r["cores"] * r["duration_s"] - r["other_cpu_time_s"]
            wanted_s += min(r["cores"], threads) * r["duration_s"]
    # on a busy machine the difference of the two counters, which have clocks of their own, may be a little below zero
    return max(0.0, left_s / wanted_s) if wanted_s else None


def images_per_s(grid: Grid, cell: Cell) -> tuple[float, float | None]:
    """Return the inference speed of a model in images/s, and the interquartile range over batches relative to it (None if unknown).

    It is the fastest measurement of an equal network on an equal device, so that equal networks have one speed. A disturbance makes a
    measurement slower, and may do so evenly.
    """
    network = _network(cell.last)
    costs = [run.cost for run in grid.sweep.runs.values() if run.cost and _network(run) == network]
    fastest = max(costs, key=lambda cost: cost["inference_images_per_s"])
    return fastest["inference_images_per_s"], fastest.get("inference_spread")


def _network(run: RunFolder) -> tuple[Any, ...]:
    """Return what equal networks on equal devices have in common, as a key."""
    names = ("params_inference", "macs_inference", "activations_inference", "precision", "inference_device", "inference_batch_size")
    run_fields = (run.config.loop.threads, run.config.loop.compile, run.config.backbone.fused_attention)
    return (*(run.cost.get(name) for name in names), *run_fields, *(event.get("device") for event in run.events_of("start")[-1:]))


def comparison(grid: Grid, column: Any) -> str:
    """Return a sentence that compares the costs of a column's arms with their baselines; empty without finished models."""
    exact = {grid.label(row): value for row in grid.rows if (value := macs_ratio(grid, row, column))}
    if not exact:
        return ""
    sentence = f"Training takes {_listed(exact)} the multiply-adds of {grid.baselines()}"
    if reason := doubt(grid, column):
        return grid.prefixed_text(column, f"{sentence}. Energy and hours are not compared, since {reason}.")
    measured = {"energy_kwh": "energy", "device_hours": "time"} if metered(grid.sweep) else {"device_hours": "time"}
    for cost, unit in measured.items():
        if ratios := {grid.label(row): value for row in grid.rows if (value := ratio(grid, row, column, cost))}:
            sentence += f"; {_listed(ratios)} the {unit}"
    return grid.prefixed_text(column, f"{sentence}.")


def _listed(values: dict[str, Ratio]) -> str:
    """List costs by label; of many arms only the lowest and the highest."""
    if len(values) > MOST_NAMED:
        (least, low), *_, (most, high) = sorted(values.items(), key=lambda item: item[1].value)
        return f"from {low} ({least}) to {high} ({most})"
    return ", ".join(f"{value} ({label})" for label, value in values.items())
