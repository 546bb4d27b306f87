"""What the values of the sweep's columns do to an arm, where these are no data sets: the differences that a plot of lines shows."""

from __future__ import annotations

from typing import Any

from vitssl.report.grid import Grid
from vitssl.report.rows import Row
from vitssl.report.stats import Difference
from vitssl.report.tables import interval
from vitssl.words import listed

MOST_COLUMNS, MOST_ROWS = 3, 4  # of which a sentence gives all differences


def sentence(grid: Grid) -> str:
    """Every arm at the other columns against the first; empty for data sets, which are not compared, and where there are many."""
    first, *others = grid.columns
    rows = [row for row in grid.rows if row.columns.get(first)]
    if not others or len(grid.columns) > MOST_COLUMNS or len(rows) > MOST_ROWS or len(_sets(grid)) != 1:
        return ""
    said = [told for column in others if (told := _against(grid, rows, column, first))]
    return f"{'; '.join(said)}." if said else ""


def _sets(grid: Grid) -> set[str | None]:
    """The data that the columns' models are tested on."""
    return {(cell.last.job.get("data") or {}).get("sha256") for row in grid.rows for cell in row.cells}


def _against(grid: Grid, rows: list[Row], column: Any, first: Any) -> str:
    gaps = [(row, gap) for row in rows if (gap := grid.gap(row, row, column, first))]
    told = [f"{interval(gap)} ({grid.label(row)}{_chance(gap)})" for row, gap in gaps]
    return f"{grid.name(column)} against {grid.name(first)}: {listed(told)}" if told else ""


def _chance(gap: Difference) -> str:
    return "; may be chance" if gap.open else ""
