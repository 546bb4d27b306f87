"""Which arm to take, and what to type where seeds are too few for that or costs unequal."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

from vitssl.report.results.best import near_best
from vitssl.report.results.costs import UNEQUAL, macs
from vitssl.report.results.grid import SEED, Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import ENOUGH_SEEDS, MIN_SEEDS
from vitssl.words import few, listed


def recommendation(grid: Grid, column: Any) -> str:
    """Return a sentence that recommends the arm of the best mean, and beside it a cheaper arm whose difference may be chance.

    It begins with "For now" if there are few seeds or unequal costs. It is empty with fewer than MIN_SEEDS seeds, or if the test
    images would choose the hyper-parameters.
    """
    ranked = grid.ranking(column)
    costs = {row: cost for row in ranked if (cost := macs(row.finished(column))) is not None}
    seeds = min((len(grid.ranking_scores(row, column)) for row in ranked), default=0)
    if seeds < MIN_SEEDS:
        return ""
    near = near_best(grid, column)
    best, cheapest = near[0], min(near, key=costs.__getitem__)
    if costs[cheapest] * UNEQUAL < costs[best]:
        if grid.settings_of(cheapest, column):
            return ""
        chosen = _either(grid, column, best, cheapest, costs[cheapest] / costs[best])
    else:
        chosen = f"{grid.label(best)}, {'the best mean' if len(near) > 1 else 'the best'}"
    take = "For now take" if seeds < ENOUGH_SEEDS or _equal_costs(grid) else "Take"
    return grid.prefixed_text(column, f"{take} {chosen}.{_worse(grid, column)}")


def _either(grid: Grid, column: Any, best: Row, cheap: Row, share: float) -> str:
    """Return the words for two arms: ``cheap``, whose training takes ``share`` of the multiply-adds of ``best``, and ``best``.

    The reader decides whether the cost or the metric matters.
    """
    gap, first = grid.gap(best, cheap, column), grid.label(best)
    assert gap is not None  # both have scores
    saving = f"its training takes {share:.2f}x the multiply-adds of {first}"
    gain = f"its mean is better by {abs(gap.mean):.2f}{grid.unit_suffix}, which may be chance"
    return f"{grid.label(cheap)} if cost matters ({saving}) and {first} if {grid.measured.name} does ({gain})"


def _worse(grid: Grid, column: Any) -> str:
    """Return a sentence that lists the arms that are worse than the best one; empty if none is."""
    near = near_best(grid, column)
    worse = [grid.label(row) for row in grid.ranking(column) if row not in near]
    return f" Worse: {few(worse)}." if worse else ""


def next_steps(grid: Grid) -> str:
    """Return a sentence on what to add to the sweep's command for seeds that give intervals, and for arms of equal cost.

    How many seeds would tell two arms apart is not said: whoever adds seeds until they do finds differences by chance.
    """
    if any(run.state != "done" for run in grid.sweep.runs.values()):
        return ""
    ranked = any(recommendation(part, column) for part in grid.parts for column in part.columns)
    added = list(filter(None, [_more_seeds(grid), _equal_costs(grid) if ranked else ""]))
    return f"To the sweep's command add {listed(added)}. Finished runs are kept." if added else ""


def _more_seeds(grid: Grid) -> str:
    """Return the argument that makes one or two seeds ENOUGH_SEEDS, or one per fold; empty if there are more, or if they are no axis."""
    seeds = grid.sweep.facts["axes"].get(SEED, [])
    if not 0 < len(seeds) < MIN_SEEDS or grid.unselected_axes or len(grid.rows) < 2:
        return ""
    others = (seed for seed in count() if seed not in seeds)
    more = [*seeds, *islice(others, max(ENOUGH_SEEDS, grid.folds or 0) - len(seeds))]
    return f"'axes.seed=[{','.join(map(str, more))}]' for {len(more)} seeds"


def _equal_costs(grid: Grid) -> str:
    """Return the argument that adds arms of equal cost.

    Empty if the sweep has some, if all arms cost about the same, or if steps end the runs. All arms get the cost of the dearest one, which
    whole epochs of the others miss by the least.
    """
    equal, axes = grid.sweep.facts["equal"], grid.sweep.facts["axes"]
    by_column: dict[Any, dict[str, float]] = {}
    for row, column, done in grid.models():
        if spent := macs(done):
            by_column.setdefault(column, {})[row.arm.name] = spent
    spread = [costs for costs in by_column.values() if max(costs.values()) > UNEQUAL * min(costs.values())]
    by_steps = any(run.run and run.run.loop.max_steps is not None for run in grid.sweep.runs.values())
    if equal["all"] or not spread or by_steps:
        return ""
    same = f"{{equalize: macs, equal_to: {max(spread[0], key=spread[0].__getitem__)}}}"
    added = f"'axes.cost={{given epochs: {{}}, equal MACs: {same}}}'"
    for axis, values in equal["axes"].items():
        chosen = [str(value) for value in axes.get(axis, [])]
        others = [value for value, rule in values.items() if rule and value not in chosen]
        if not others:
            return ""
        added = f"'axes.{axis}=[{','.join([*chosen, *others])}]'"
    return f"{added} for arms of equal cost"
