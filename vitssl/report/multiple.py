"""How sure a difference between a column's arms is when all of these comparisons are looked at together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from vitssl.report.grid import Grid
from vitssl.report.rows import Row
from vitssl.report.stats import LEVEL, holm

LEAST_SHOWN = 0.001
Corrected = dict[frozenset[int], float]  # p-values after Holm's correction, by the identities of two rows


def corrected(grid: Grid, column: Any) -> Corrected:
    """Of every two rows of a column that have an interval; one family."""
    if ("corrected", column) not in grid.remembered:
        grid.remembered["corrected", column] = _corrected(grid, column)
    return grid.remembered["corrected", column]


def _corrected(grid: Grid, column: Any) -> Corrected:
    found = {
        frozenset((id(one), id(other))): gap.p
        for one, other in combinations(grid.rows, 2)
        if (gap := grid.gap(one, other, column)) and gap.p is not None
    }
    return dict(zip(found, holm(list(found.values())), strict=True))


def settled(grid: Grid, column: Any, pair: tuple[Row, Row]) -> bool:
    """Does a pair of rows differ after the correction too? Of one pair there is nothing to correct."""
    found, (one, other) = corrected(grid, column), pair
    return len(found) < 2 or found.get(frozenset((id(one), id(other))), 0.0) <= 1 - LEVEL


def largest(grid: Grid, column: Any, pairs: Iterable[tuple[Row, Row]]) -> str:
    """The p-value of a pair of rows after the correction, of several the largest, in words; empty where nothing is to be corrected."""
    found = corrected(grid, column)
    known = [p for one, other in pairs if (p := found.get(frozenset((id(one), id(other))))) is not None]
    if len(found) < 2 or not known:
        return ""
    of_all = f"p {shown(max(known))}{' at most' if len(known) > 1 else ''} after Holm's correction for {len(found)} comparisons"
    return f"{of_all}, so not settled" if max(known) > 1 - LEVEL else of_all


def shown(p: float) -> str:
    """Two digits."""
    return f"{p:.2g}" if p >= LEAST_SHOWN else f"below {LEAST_SHOWN}"
