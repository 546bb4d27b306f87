"""Which differences between a column's arms are more than chance when all of these comparisons are looked at together."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from vitssl.report.grid import Grid
from vitssl.report.rows import Row
from vitssl.report.stats import LEVEL, holm

Corrected = dict[frozenset[int], float]  # p-values after Holm's correction, by the identities of two rows


def corrected(grid: Grid, column: Any) -> Corrected:
    """Of every two rows of a column that have an interval; one family."""
    found = {
        frozenset((id(one), id(other))): gap.p
        for one, other in combinations(grid.rows, 2)
        if (gap := grid.gap(one, other, column)) and gap.p is not None
    }
    return dict(zip(found, holm(list(found.values())), strict=True))


def holds(found: Corrected, one: Row, other: Row) -> bool | None:
    """Is the difference between two rows more than chance after the correction? None where it has no p-value."""
    p = found.get(frozenset((id(one), id(other))))
    return None if p is None else p <= 1 - LEVEL


def comparisons(found: Corrected) -> str:
    """By what they were corrected."""
    return f"Holm's correction for {len(found)} comparisons"
