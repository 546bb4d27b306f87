"""Tables of the differences of arms from their baseline, from each other, and from themselves at another column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitssl.report.results.best import corrected, p_text
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import CONFIDENCE, Difference
from vitssl.report.table import NOTE, Entry, Table
from vitssl.report.tables.entries import LOWER_IS_BETTER, difference_entry

FEW_COLUMNS, FEWEST_PAIRED, MOST_PAIRED = 2, 3, 6  # every pair is shown for at most so many columns, and from so many to so many arms


def differences(grid: Grid) -> Table | None:
    """Return every arm minus its baseline, with a 95 % confidence interval; None if no arm has a difference."""
    rows = []
    for row in grid.rows:
        intervals = [grid.against_baseline(row, column) for column in grid.columns]
        if any(intervals):
            against = f" against {grid.baseline_name(row)}" if row.arm.baseline else ""
            how = "; ".join(dict.fromkeys(d.how for d in intervals if d))
            rows.append([Entry(grid.label(row) + against), *map(difference_entry, intervals), Entry(how, NOTE)])
    if not rows:
        return None
    unit = f"Percentage points of {grid.measured.name}" if grid.measured.unit == "%" else grid.measured.name
    direction = f" {LOWER_IS_BETTER}" if grid.measured.lower_is_better else ""
    return Table(
        f"Difference from {grid.baselines()}", ["arm", *(grid.name(c) or grid.measured.title for c in grid.columns), "interval"], rows,
        caption=f"{unit}{_in_brackets(rows)}.{direction}",
        left=frozenset({0, len(grid.columns) + 1}),
    )  # fmt: skip


def _in_brackets(rows: list[list[Entry]]) -> str:
    """Return the words for the brackets of differences; empty if there are none, since two seeds have no interval."""
    return ", with the 95 % confidence interval in brackets" if any("[" in entry.text for row in rows for entry in row) else ""


def pairs(grid: Grid) -> list[Table]:
    """Return every arm minus every other arm: a table for each column, also for each part of equal epochs or equal cost.

    There is none for many columns or very many arms, nor for so few arms that the differences from the baseline are all.
    """
    return [table for part in grid.parts for table in _pairs(part)]


def _pairs(grid: Grid) -> list[Table]:
    tables = []
    for column in grid.columns if len(grid.columns) <= FEW_COLUMNS else []:
        rows = [row for row in grid.rows if grid.scores(row, column)]
        if FEWEST_PAIRED <= len(rows) <= MOST_PAIRED:
            lines = [
                [Entry(grid.label(one)), *(_told_apart(grid.gap(one, other, column)) if other is not one else Entry() for other in rows)]
                for one in rows
            ]
            title = ", ".join(filter(None, ["Arms against each other", grid.name(column), grid.part]))
            intervals = _in_brackets(lines)
            caption = f"The row's arm minus the column's arm{intervals}.{' Bold: the interval excludes 0.' if intervals else ''}"
            tables.append(Table(title, ["arm", *map(grid.label, rows)], lines, caption))
            tables += [_p_values(grid, column, rows)] if corrected(grid, column) else []
    return tables


def _p_values(grid: Grid, column: Any, rows: list[Row]) -> Table:
    """Return the p-value of every pair of rows, by which sentences and the main table tell arms apart."""
    p_values = corrected(grid, column)
    lines = []
    for one in rows:
        entries = [p_values.get(frozenset((one, other))) if other is not one else None for other in rows]
        lines.append([Entry(grid.label(one)), *(Entry() if p is None else Entry(p_text(p), best=p <= 1 - CONFIDENCE) for p in entries)])
    title = ", ".join(filter(None, ["p-values after Holm's correction", grid.name(column), grid.part]))
    caption = f"For {len(p_values)} comparisons of arms. Bold: at most {1 - CONFIDENCE:.2g}. Uncorrected ones are in differences.csv."
    return Table(title, ["arm", *map(grid.label, rows)], lines, caption)


def _told_apart(gap: Difference | None) -> Entry:
    """Return a difference as a cell, which is set apart if its interval excludes 0."""
    return replace(difference_entry(gap), best=gap is not None and not gap.open)


def columns(grid: Grid) -> Table | None:
    """Return every arm at the other columns minus itself at the first; None for columns of several data sets, or many columns."""
    first, *others = grid.columns
    if not 0 < len(others) < MOST_PAIRED or not grid.of_one_set:
        return None
    rows = [[Entry(grid.label(row)), *(difference_entry(grid.gap(row, row, column, first)) for column in others)] for row in grid.rows]
    caption = f"Each arm minus the same arm at {grid.name(first)}{_in_brackets(rows)}."
    return Table(f"Against {grid.name(first)}", ["arm", *map(grid.name, others)], rows, caption)
