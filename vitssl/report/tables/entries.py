"""Entries and words that several tables have."""

from __future__ import annotations

from typing import Any

from vitssl.report.results import costs
from vitssl.report.results.collect import Cell, Sweep
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import Difference
from vitssl.report.table import DASH, PUBLISHED, Entry, figure

LOWER_IS_BETTER = "↓: lower is better."


def which(grid: Grid, row: Row, column: Any) -> list[Entry]:
    """The text columns of a table of models: the arm, and its column where there are several."""
    return [Entry(grid.label(row)), Entry(str(column) if grid.axis else DASH)]


def published(grid: Grid, row: Row, column: Any) -> Entry:
    """The paper's number; † where it quotes it from elsewhere."""
    paper = grid.published(row, column)
    return Entry(f"{paper:.2f}{'†' if row.arm.quoted else ''}", PUBLISHED) if paper is not None else Entry()


def training(done: list[Cell]) -> Entry:
    """Multiply-adds of training."""
    count = costs.macs(done)
    return figure(None if count is None else count / 1e15)


def versus(difference: Difference | None) -> Entry:
    """A difference and its interval as a cell, sorted by the difference."""
    return Entry(str(difference), parts=(difference.mean,)) if difference else Entry()


def currency(sweep: Sweep) -> str:
    return sweep.currency or "money"
