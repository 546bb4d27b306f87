"""Cells and words that several tables use."""

from __future__ import annotations

from typing import Any

from vitssl.report.results import costs
from vitssl.report.results.collect import Cell, Sweep
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import Difference
from vitssl.report.table import DASH, PUBLISHED, Entry, figure

LOWER_IS_BETTER = "↓: lower is better."


def model_entries(grid: Grid, row: Row, column: Any) -> list[Entry]:
    """Return the text columns of a table of models: the arm, and its column if there are several."""
    return [Entry(grid.label(row)), Entry(str(column) if grid.axis else DASH)]


def published(grid: Grid, row: Row, column: Any) -> Entry:
    """Return the paper's number, marked by † if the paper quotes it from elsewhere."""
    paper = grid.published(row, column)
    return Entry(f"{paper:.2f}{'†' if row.arm.quoted else ''}", PUBLISHED) if paper is not None else Entry()


def training(done: list[Cell]) -> Entry:
    """Return the multiply-adds of training in PMACs (1e15), mean over finished models."""
    count = costs.macs(done)
    return figure(None if count is None else count / 1e15)


def difference_entry(difference: Difference | None) -> Entry:
    """Return a difference and its interval as a cell, which is sorted by the difference."""
    return Entry(str(difference), parts=(difference.mean,)) if difference else Entry()


def currency(sweep: Sweep) -> str:
    """Return the header for what the runs cost in money."""
    return sweep.currency or "money"
