"""What held-out images chose of the axes that a sweep selects over, and what choosing on the test images would have given."""

from __future__ import annotations

from statistics import mean
from typing import Any

from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row, Selection
from vitssl.report.results.stats import plus_minus, std
from vitssl.report.table import DASH, Entry, Table
from vitssl.report.tables.entries import model_entries, published
from vitssl.words import listed

MOST_POINTS = 100  # the most lines that the table of all values may have


def table(grid: Grid) -> Table | None:
    """Return, for every row and column, the point that held-out images chose, beside what the test images would have chosen.

    Also the metric at the chosen point, the paper's number, and how many points are missing. None if the sweep selects over no axis.
    """
    rows = [_line(grid, row, column) for column in grid.columns for row in grid.rows if row.candidates(column) and row.selections]
    if not rows:
        return None
    metric, select = grid.measured.title, grid.sweep.facts["select"]
    chosen = [*(grid.short(axis) for axis in select), f"held-out {metric}", f"test {metric}, mean ± std (seeds)"]
    on_test = [f"best test {metric}", "mean ± std over the cells"]
    caption = (
        f"Each arm takes the cell of {listed(select)} with the best mean over seeds on held-out images. Selected on test: the "
        "best mean over seeds on the test images themselves, like the maximum over a grid that papers report; it flatters every arm. "
        "A cell counts only when all of its seeds are done."
    )
    return Table(
        "Selection", ["arm", grid.axis_name, *chosen, "paper", *on_test, "cells"], rows, caption, left=frozenset({0, 1}),
        groups=[("", 2), ("chosen on held-out images", len(chosen)), ("", 1), ("selected on test", len(on_test)), ("", 1)],
    ).trimmed()  # fmt: skip


def points(grid: Grid) -> Table | None:
    """Return the means at every point, as of an ablation, by row and column; None if there are too many to read."""
    select, metric = grid.sweep.facts["select"], grid.measured.title
    rows = [line for column in grid.columns for row in grid.rows if row.selections for line in _points(grid, row, column)]
    if not 0 < len(rows) <= MOST_POINTS:
        return None
    header = ["arm", grid.axis_name, *(grid.short(axis) for axis in select), f"held-out {metric}", f"test {metric}"]
    caption = f"Each arm at every {listed(select)}: mean ± standard deviation over the seeds, their number in brackets."
    return Table("All values of the selection", header, rows, caption, left=frozenset({0, 1})).trimmed()


def _points(grid: Grid, row: Row, column: Any) -> list[list[Entry]]:
    """Return a line for each point of a selection; none if there is only one point."""
    selection, lines = row.selections[column], []
    for point, cells in selection.points.items() if len(selection.points) > 1 else ():
        scores = ([cell.result(*reading) for cell in cells] for reading in (selection.held_out, selection.tested))
        done = [[score for score in values if score is not None] for values in scores]
        entries = [Entry(f"{plus_minus(values)} ({len(values)})" if values else DASH) for values in done]
        lines.append([*model_entries(grid, row, column), *(Entry(str(value)) for value in point), *entries])
    return lines


def _line(grid: Grid, row: Row, column: Any) -> list[Entry]:
    selection = row.selections[column]
    point, held_out = selection.best(selection.held_out), list(grid.scores(row, column, selection.held_out).values())
    scores, on_test = list(grid.scores(row, column).values()), selection.means(selection.tested)
    best = selection.best(selection.tested)
    return [
        *model_entries(grid, row, column),
        *(Entry(DASH if value is None else str(value)) for value in point or [None] * len(grid.sweep.facts["select"])),
        Entry(plus_minus(held_out) if held_out else DASH),
        Entry(f"{plus_minus(scores)} ({len(scores)})" if scores else DASH),
        published(grid, row, column),
        Entry(DASH if best is None else f"{on_test[best]:.2f}"),
        Entry(plus_minus(list(on_test.values())) if on_test else DASH),
        _count(selection),
    ]


def _count(selection: Selection) -> Entry:
    """Return from how many points the chosen one was taken, and how many are missing."""
    total, missing = len(selection.points), selection.missing
    return Entry(f"{total - missing} of {total}, {missing} missing" if missing else f"{total}")


def numbers(grid: Grid, row: Row, column: Any) -> dict[str, Any]:
    """Return the selection of a row and column for a spreadsheet, unrounded; empty if the sweep selects over no axis."""
    if not row.selections:
        return {}
    selection, metric, select = row.selections[column], grid.metric[1], grid.sweep.facts["select"]
    point, best = selection.best(selection.held_out), selection.best(selection.tested)
    on_test, held_out = selection.means(selection.tested), selection.means(selection.held_out)
    return {
        **{f"chosen_{axis}": value for axis, value in zip(select, point or [None] * len(select), strict=True)},
        f"held_out_{metric}": None if point is None else held_out[point],
        f"selected_on_test_{metric}": None if best is None else on_test[best],
        f"cells_{metric}_mean": mean(on_test.values()) if on_test else None,
        f"cells_{metric}_std": std(list(on_test.values())),
        "cells": len(held_out), "cells_missing": selection.missing,
    }  # fmt: skip
