"""Which arm to take, and how to add seeds where few leave that open."""

from __future__ import annotations

from itertools import count
from typing import Any

from vitssl.report.best import MOST_NAMED, fewest, interval, level
from vitssl.report.costs import begin, macs
from vitssl.report.grid import SEED, Grid
from vitssl.report.rows import Row, finished
from vitssl.report.stats import LEAST
from vitssl.report.table import signed
from vitssl.words import listed

ENOUGH = 5  # seeds; an interval of fewer is so wide that it holds differences which matter


def advice(grid: Grid) -> list[str]:
    """For every column what to take; and what to type for more seeds, where these may decide."""
    places = [(part, column) for part in grid.parts() for column in grid.columns]
    said = [text for part, column in places if (text := recommendation(part, column))]
    more = _more_seeds(grid) if any(_undecided(part, column) for part, column in places) else ""
    return [*said[:-1], " ".join(filter(None, [*said[-1:], more]))]


def recommendation(grid: Grid, column: Any) -> str:
    """The arm of the fewest multiply-adds of those that are not told from the best one; of few seeds for the time being.

    Empty where too few could tell, where multiply-adds are not known of every arm, or where the test images would choose that arm's
    hyper-parameters.
    """
    ranked = grid.ranking(column)
    costs = [macs(finished(row.columns[column])) for row in ranked]
    if not ranked or None in costs or fewest(grid, ranked, column) < LEAST:
        return ""
    cost = {id(row): count for row, count in zip(ranked, costs, strict=True)}
    near, first = level(grid, column), ranked[0]
    row = min(near, key=lambda row: cost[id(row)])
    if row is not first:
        return "" if grid.settings_of(row, column) else _cheaper(grid, column, row, cost[id(row)] / cost[id(first)])
    cheaper = {grid.label(other): cost[id(other)] / cost[id(first)] for other in ranked if cost[id(other)] < cost[id(first)]}
    take = f"{_take(grid, column)} {grid.label(first)}, the best{' mean' if len(near) > 1 else ''}"
    return f"{take}: {_worse(cheaper, len(near) > 1)}." if cheaper else f"{take} and the cheapest."


def _take(grid: Grid, column: Any) -> str:
    """How a recommendation begins."""
    few = fewest(grid, grid.ranking(column), column) < ENOUGH
    return f"{begin(grid, column, 'For')} now take" if few else f"{begin(grid, column, 'What')} to take:"


def _worse(cheaper: dict[str, float], level_with: bool) -> str:
    """That the cheaper arms are worse, with their share of the best one's multiply-adds: trained as long they might not be."""
    shares = [f"{share:.2f}x ({label})" for label, share in cheaper.items()]
    shares = shares if len(shares) <= MOST_NAMED else [f"{min(cheaper.values()):.2f}x to {max(cheaper.values()):.2f}x"]
    who = "the cheaper arm" if len(cheaper) == 1 else "each cheaper arm"
    than = " than it, or than one level with it," if level_with else ""
    return f"{who}, trained with {listed(shares)} of its multiply-adds, is worse{than} by more than chance"


def _cheaper(grid: Grid, column: Any, row: Row, share: float) -> str:
    """One that costs a share of the arm of the best mean; as long as seeds are few the means count too."""
    ranked = grid.ranking(column)
    gap, best = grid.gap(row, ranked[0], column), grid.label(ranked[0])
    assert gap is not None
    if fewest(grid, ranked, column) < ENOUGH:
        cost = f"its training takes {share:.2f}x the multiply-adds of {best}"
        take = f"{_take(grid, column)} {grid.label(row)} where cost matters most ({cost})"
        return f"{take} and {best} where {grid.measured.name} does (its mean is better by {abs(gap.mean):.2f}{grid.points})."
    worse = f"{signed(gap.mean)}{grid.points}, {interval(gap)}"
    return (
        f"{_take(grid, column)} {grid.label(row)}, whose training takes {share:.2f}x the multiply-adds of {best}: "
        f"that its mean is lower may be chance ({worse})."
    )


def _undecided(grid: Grid, column: Any) -> bool:
    """Could more seeds name the best arm of a column? Not where the test images alone are too few."""
    if not (ranked := grid.ranking(column)):
        return not grid.unchosen(column) and sum(bool(grid.scores(row, column)) for row in grid.rows) > 1
    first, *near = level(grid, column)
    gaps = [gap for row in near if (gap := grid.gap(first, row, column))]
    return fewest(grid, ranked, column) < ENOUGH and any(abs(gap.mean) > gap.images_half or gap.seeds < LEAST for gap in gaps)


def _more_seeds(grid: Grid) -> str:
    """What makes them enough; empty where runs are still to come, where seeds are no axis of the sweep, or enough of them."""
    seeds = (grid.sweep.facts.get("axes") or {}).get(SEED) or []
    if not 0 < len(seeds) < ENOUGH or any(run.status != "done" for run in grid.sweep.runs.values()):
        return ""
    others = (seed for seed in count() if seed not in seeds)
    wanted = ",".join(str(seed) for seed in [*seeds, *(next(others) for _ in range(ENOUGH - len(seeds)))])
    return f"For more seeds add 'axes.seed=[{wanted}]' to the sweep's command: finished runs are kept."
