"""Which arm to take, and what to type if few seeds or unequal costs leave that open."""

from __future__ import annotations

from collections import Counter
from itertools import count
from math import inf
from typing import Any

from vitssl.report.results.best import article, near_best, settled, undecided
from vitssl.report.results.costs import UNEQUAL, macs
from vitssl.report.results.grid import SEED, Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import ENOUGH_SEEDS, MAX_SEEDS, MIN_SEEDS, Difference
from vitssl.words import few, listed

MANY = 10  # seeds that are worth to be asked for
UNCORRECTED = "Perhaps worse (not significant after Holm's correction)"


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
        chosen = f"{grid.label(best)}, {'the best mean' if len(near) > 1 else f'{article(grid, column)} best'}"
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
    """Return sentences that list the arms worse than a near-best one, after and only before Holm's correction, and the undecided arms."""
    near, rest = near_best(grid, column), undecided(grid, column)
    by_verdict: dict[str, list[str]] = {"Worse": [], UNCORRECTED: [], "Undecided": [grid.label(row) for row in rest]}
    for row in grid.ranking(column)[len(near) :]:
        for better in near:
            if (gap := grid.gap(row, better, column)) is not None and not gap.open:
                by_verdict["Worse" if settled(grid, column, row, better) else UNCORRECTED].append(grid.label(row))
                break
    return "".join(f" {verdict}: {few(labels)}." for verdict, labels in by_verdict.items() if labels)


# --------------------------------------------------------------------------------------------------------- what to type


def next_steps(grid: Grid) -> str:
    """Return how many seeds would decide what is open, and what to type for more seeds and for arms of equal cost.

    Empty if nothing is open, or if runs are still to come, which may decide it.
    """
    if any(run.state != "done" for run in grid.sweep.runs.values()):
        return ""
    places = [(part, column) for part in grid.parts for column in part.columns]
    needed = [text for place in places if (text := _needed(*place))]
    ranked = any(recommendation(*place) for place in places)
    added = list(filter(None, [_more_seeds(grid, max(_wanted(*place) for place in places)), _equal_costs(grid) if ranked else ""]))
    return " ".join([*needed, *([f"To the sweep's command add {listed(added)}. Finished runs are kept."] if added else [])])


def _needed(grid: Grid, column: Any) -> str:
    """Return a sentence on how many seeds would tell the best mean from the arm that could be taken instead; empty if no arm could."""
    if (decisive := _decisive(grid, column)) is None:
        return ""
    first, other, gap = decisive
    if gap.half() is None or not gap.mean:
        return ""
    needed, arms = gap.seeds_needed(), f"{grid.label(first)} and {grid.label(other)}"
    if needed is None and gap.overlap:  # what folds share stays in the error
        consequence = f"{MAX_SEEDS} seeds would not tell {arms} apart either, since folds share their training images"
    else:
        seeds = f"more than {MAX_SEEDS} seeds, or more test images," if needed is None else f"{max(needed, ENOUGH_SEEDS)} seeds"
        consequence = f"{seeds} would tell {arms} apart"
    return grid.prefixed_text(column, f"If means and spreads stay as they are, {consequence}.")


def _decisive(grid: Grid, column: Any) -> tuple[Row, Row, Difference] | None:
    """Return the row of the best mean, the cheapest row that may be as good, and their difference.

    If no row may be as good, it is the cheapest undecided one; None if there is none either.
    """
    near = near_best(grid, column)
    others = near[1:] or undecided(grid, column)
    if not near or not others:
        return None
    first, other = near[0], min(others, key=lambda row: macs(row.finished(column)) or inf)
    gap = grid.gap(first, other, column)
    assert gap is not None  # both have scores
    return first, other, gap


def _wanted(grid: Grid, column: Any) -> int:
    """Return the number of seeds that may decide the best arm of a column; 0 if it is clear, or if more than MANY would be needed."""
    if not grid.ranking(column):
        open_yet = not grid.unranked_reason(column) and sum(bool(grid.scores(row, column)) for row in grid.rows) > 1
        return ENOUGH_SEEDS if open_yet else 0
    if (decisive := _decisive(grid, column)) is None:
        return 0
    *_, gap = decisive
    needed = ENOUGH_SEEDS if gap.seeds < MIN_SEEDS else max(ENOUGH_SEEDS, gap.seeds_needed() or inf)
    return int(needed) if needed <= MANY else 0


def _more_seeds(grid: Grid, wanted: int) -> str:
    """Return the argument that raises the number of seeds to ``wanted``, the same number for every fold.

    Empty if seeds are no axis of the sweep, or are enough already.
    """
    seeds = grid.sweep.facts["axes"].get(SEED, [])
    if not 0 < len(seeds) < wanted:
        return ""
    more = _evenly(seeds, wanted, grid.folds or 1)
    return f"'axes.seed=[{','.join(map(str, more))}]' for {len(more)} seeds"


def _evenly(seeds: list[int], wanted: int, folds: int) -> list[int]:
    """Return ``seeds`` and the smallest further ones, until there are at least ``wanted`` and every fold has equally many."""
    each, chosen = max(-(-wanted // folds), *Counter(seed % folds for seed in seeds).values()), [*seeds]
    others = (seed for seed in count() if seed not in seeds)
    while len(chosen) < each * folds:
        seed = next(others)
        if sum(other % folds == seed % folds for other in chosen) < each:
            chosen.append(seed)
    return chosen


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
