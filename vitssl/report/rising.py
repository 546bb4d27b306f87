"""Whether training ended before its accuracy did: of what still rises, longer training may change the order."""

from __future__ import annotations

from statistics import mean
from typing import Any

from vitssl.report.collect import Cell
from vitssl.report.grid import Grid
from vitssl.report.rows import Row, finished
from vitssl.words import listed

LEAST = 1.0  # points over the end of training that are worth a sentence
END = (0.5, 0.9)  # of a training: between these is the evaluation that its last one is compared with, the latest such
MOST_NAMED = 4  # models


def sentence(grid: Grid) -> str:
    """Which models' accuracies still rose; empty where none did, or where no evaluation says so."""
    if grid.measured.unit != "%":
        return ""
    rises = {
        f"{grid.label(row)}{f' on {name}' if (name := grid.name(column)) else ''}": rise
        for row in grid.rows
        for column in grid.columns
        if (rise := _rise(grid, row, column)) is not None and rise[0] >= LEAST
    }
    if not rises:
        return ""
    said = [f"{label} by {points:.2f} points over the last {100 * share:.0f} %" for label, (points, share) in rises.items()]
    which = listed(said) if len(said) <= MOST_NAMED else f"{len(said)} models by {LEAST:g} point and more"
    return f"At the end of training {grid.measured.name} still rose: {which}; longer training may change the order."


def _rise(grid: Grid, row: Row, column: Any) -> tuple[float, float] | None:
    """Mean over the finished seeds, and the share of the last stage's training that it is of."""
    ends = [end for cell in finished(row.columns.get(column, [])) if (end := _end(grid, cell))]
    return (mean(rise for rise, _ in ends), max(share for _, share in ends)) if ends else None


def _end(grid: Grid, cell: Cell) -> tuple[float, float] | None:
    evaluator, metric = grid.metric
    values = {e["step"]: value for e in cell.last.of("eval") if (value := (e.get(evaluator) or {}).get(metric)) is not None}
    last = max(values, default=0)
    before = [step for step in values if END[0] * last <= step <= END[1] * last]
    return (values[last] - values[max(before)], 1 - max(before) / last) if before else None
