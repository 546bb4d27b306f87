"""What the values of the sweep's columns do to an arm, where these are no data sets: the differences that a plot of lines shows."""

from __future__ import annotations

from typing import Any

from vitssl.report.costs import macs
from vitssl.report.grid import Grid
from vitssl.report.rows import Row, finished
from vitssl.report.stats import Difference
from vitssl.report.tables import interval
from vitssl.words import listed

MOST_COLUMNS, MOST_ROWS = 3, 4  # of which a sentence gives all differences


def sentence(grid: Grid) -> str:
    """Every arm at the other columns against the first; empty for data sets, which are not compared, and where there are many."""
    first, *others = grid.columns
    rows = [row for row in grid.rows if row.columns.get(first)]
    if not others or len(grid.columns) > MOST_COLUMNS or len(rows) > MOST_ROWS or not grid.of_one_set:
        return ""
    said = [told for column in others if (told := _against(grid, rows, column, first))]
    return f"In {grid.measured.name}, {'; '.join(said)}." if said else ""


def _against(grid: Grid, rows: list[Row], column: Any, first: Any) -> str:
    gaps = [(row, gap) for row in rows if (gap := grid.gap(row, row, column, first))]
    told = [f"{interval(gap)} ({grid.label(row)}{_chance(gap)})" for row, gap in gaps]
    return f"{grid.name(column)} against {grid.name(first)}: {listed(told)}{_for(rows, column, first)}" if told else ""


def _for(rows: list[Row], column: Any, first: Any) -> str:
    """What the training costs at one column of what it costs at the other: once where that is about the same of all rows."""
    costs = [(macs(finished(row.columns.get(column, []))), macs(finished(row.columns.get(first, [])))) for row in rows]
    ratios = sorted(own / other for own, other in costs if own and other)
    if not ratios or (ratios[0] > 0.995 and ratios[-1] < 1.005):
        return ""
    shown = f"{ratios[0]:.2f}x" if ratios[-1] - ratios[0] < 0.05 * ratios[0] else f"{ratios[0]:.2f}x to {ratios[-1]:.2f}x"
    return f", for {shown} the multiply-adds of training"


def _chance(gap: Difference) -> str:
    return "; may be chance" if gap.open else ""
