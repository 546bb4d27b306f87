"""What the values of the sweep's columns do to its arms, where these are no data sets: a choice of the network, or of the training."""

from __future__ import annotations

from typing import Any

from vitssl.report.costs import EQUAL, macs
from vitssl.report.grid import Grid
from vitssl.report.rows import Row, finished
from vitssl.report.stats import ENOUGH, LEAST, Difference
from vitssl.report.tables import interval
from vitssl.report.unfinished import unlearned
from vitssl.words import listed

MOST_COLUMNS, MOST_ROWS = 3, 4  # of which a sentence gives all differences


def sentence(grid: Grid) -> str:
    """Every arm at the other columns against the first, and which to take where one is no worse in anything; empty for data sets, which are
    not compared, and where there are many."""
    if not _comparable(grid):
        return ""
    first, *others = grid.columns
    said = [told for column in others if (told := _against(grid, column, first))]
    best = dominating(grid)
    return f"{' '.join(said)}{_take(grid, best)}" if said and best is not None else " ".join(said)


def _take(grid: Grid, column: Any) -> str:
    """For the time being where seeds are few, or training was short: another column may need more of it."""
    seeds = min(len(scores) for row in grid.rows if (scores := grid.scores(row, column)))
    short = ", as far as training this short can tell" if unlearned(grid) else ""
    return f" So {'for now ' if seeds < ENOUGH or short else ''}take {grid.name(column)}{short}."


def dominating(grid: Grid) -> Any:
    """The column at which no arm has a worse mean or costs more than at another, and some arm is better by more than chance than at each;
    None where there is none, or where the test images would choose a hyper-parameter."""
    if not _comparable(grid) or grid.unselected_columns:
        return None
    return next((column for column in grid.columns if all(_beats(grid, column, other) for other in grid.columns if other != column)), None)


def _comparable(grid: Grid) -> bool:
    return 1 < len(grid.columns) <= MOST_COLUMNS and len(grid.rows) <= MOST_ROWS and grid.of_one_set


def _beats(grid: Grid, column: Any, other: Any) -> bool:
    gaps, ratios = _gaps(grid, column, other), _ratios(grid, column, other)
    sign = -1 if grid.measured.lower_is_better else 1
    no_worse = all(sign * gap.mean >= 0 for _, gap in gaps) and all(ratio <= EQUAL for ratio in ratios)
    return no_worse and bool(ratios) and any(not gap.open for _, gap in gaps)


def _gaps(grid: Grid, column: Any, other: Any) -> list[tuple[Row, Difference]]:
    """Of every arm with itself."""
    return [(row, gap) for row in grid.rows if (gap := grid.gap(row, row, column, other))]


def _ratios(grid: Grid, column: Any, other: Any) -> list[float]:
    """What training takes of multiply-adds relative to the other column, in rising order."""
    costs = [(macs(finished(row.columns.get(column, []))), macs(finished(row.columns.get(other, [])))) for row in grid.rows]
    return sorted(own / others for own, others in costs if own and others)


def _against(grid: Grid, column: Any, first: Any) -> str:
    gaps, metric = _gaps(grid, column, first), grid.measured.name
    told = {
        f"{metric} is higher than with {grid.name(first)} for": [each for each in gaps if not each[1].open and each[1].mean > 0],
        f"{metric} is lower than with {grid.name(first)} for": [each for each in gaps if not each[1].open and each[1].mean < 0],
        f"a difference from {grid.name(first)} may be chance for": [each for each in gaps if each[1].open and each[1].seeds >= LEAST],
        f"seeds are too few to tell it from {grid.name(first)} for": [each for each in gaps if each[1].seeds < LEAST],
    }
    parts = [f"{words} {listed(f'{grid.label(row)} ({interval(gap)})' for row, gap in rows)}" for words, rows in told.items() if rows]
    return f"With {grid.name(column)}, {'; '.join(parts)}{_cost(_ratios(grid, column, first), grid.name(first))}." if parts else ""


def _cost(ratios: list[float], than: str) -> str:
    """Once where it is about the same of all rows; nothing where it is that of the other column."""
    if not ratios or (ratios[0] > 1 / EQUAL and ratios[-1] < EQUAL):
        return ""
    shown = f"{ratios[0]:.2f}x" if ratios[-1] - ratios[0] < 0.05 * ratios[0] else f"{ratios[0]:.2f}x to {ratios[-1]:.2f}x"
    return f"; training takes {shown} the multiply-adds of {than}"
