"""Entries and words that several tables have."""

from __future__ import annotations

from typing import Any

from vitssl.report.results.collect import Sweep
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import Difference
from vitssl.report.table import DASH, Entry

LOWER_IS_BETTER = "↓: lower is better."


def which(grid: Grid, row: Row, column: Any) -> list[Entry]:
    """The text columns of a table of models: the arm, and its column where there are several."""
    return [Entry(grid.label(row)), Entry(str(column) if grid.axis else DASH)]


def versus(difference: Difference | None) -> Entry:
    """A difference and its interval as a cell, sorted by the difference."""
    return Entry(str(difference), parts=(difference.mean,)) if difference else Entry()


def currency(sweep: Sweep) -> str:
    return sweep.currency or "money"
