"""Which arm to take, and what to type where few seeds or unequal costs leave that open."""

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
UNCORRECTED = "Perhaps worse (no longer after Holm's correction)"


def recommendation(grid: Grid, column: Any) -> str:
    """The arm of the best mean, beside one that costs less and is not told from it; of few seeds for the time being.

    Empty where too few could tell, or where the test images would choose that arm's hyper-parameters.
    """
    ranked = grid.ranking(column)
    costs = {row: macs(row.finished(column)) for row in ranked}
    seeds = min((len(grid.ranking_scores(row, column)) for row in ranked), default=0)
    if seeds < MIN_SEEDS:
        return ""
    near = near_best(grid, column)
    best, cheapest = near[0], min(near, key=lambda row: costs[row])
    if costs[cheapest] * UNEQUAL < costs[best]:
        if grid.settings_of(cheapest, column):
            return ""
        chosen = _either(grid, column, best, cheapest, costs[cheapest] / costs[best])
    else:
        chosen = f"{grid.label(best)}, {'the best mean' if len(near) > 1 else f'{article(grid, column)} best'}"
    take = "For now take" if seeds < ENOUGH_SEEDS or _equal_costs(grid) else "Take"
    return grid.prefixed_text(column, f"{take} {chosen}.{_worse(grid, column)}")


def _either(grid: Grid, column: Any, best: Row, cheap: Row, share: float) -> str:
    """One that costs a share of the arm of the best mean, and that: which of the two matters is not the report's to say."""
    gap, first = grid.gap(best, cheap, column), grid.label(best)
    assert gap is not None  # both have scores
    saving = f"its training takes {share:.2f}x the multiply-adds of {first}"
    gain = f"its mean is better by {abs(gap.mean):.2f}{grid.unit_suffix}, which may be chance"
    return f"{grid.label(cheap)} if cost matters ({saving}) and {first} if {grid.measured.name} does ({gain})"


def _worse(grid: Grid, column: Any) -> str:
    """The arms that are told from one that may be the best, before and after the correction for all comparisons, and those that are not."""
    near, rest = near_best(grid, column), undecided(grid, column)
    told: dict[str, list[str]] = {"Worse": [], UNCORRECTED: [], "Undecided": [grid.label(row) for row in rest]}
    for row in grid.ranking(column)[len(near) :]:
        for than in near:
            if (gap := grid.gap(row, than, column)) is not None and not gap.open:
                told["Worse" if settled(grid, column, row, than) else UNCORRECTED].append(grid.label(row))
                break
    return "".join(f" {how}: {few(labels)}." for how, labels in told.items() if labels)


# --------------------------------------------------------------------------------------------------------- what to type


def next_steps(grid: Grid) -> str:
    """How many seeds would tell what is open yet, and what to type for more seeds, and for arms of equal cost; empty where nothing is open,
    and where runs are to come, which may decide by themselves."""
    if any(run.status != "done" for run in grid.sweep.runs.values()):
        return ""
    places = [(part, column) for part in grid.parts for column in part.columns]
    needed = [text for place in places if (text := _needed(*place))]
    ranked = any(recommendation(*place) for place in places)
    added = list(filter(None, [_more_seeds(grid, max(_wanted(*place) for place in places)), _equal_costs(grid) if ranked else ""]))
    return " ".join([*needed, *([f"To the sweep's command add {listed(added)}. Finished runs are kept."] if added else [])])


def _needed(grid: Grid, column: Any) -> str:
    """How many seeds would tell the best mean from the arm that may be taken in its place."""
    first, other, gap = _decisive(grid, column)
    if gap is None or gap.half() is None or not gap.mean:
        return ""
    needed, which = gap.seeds_needed(), f"{grid.label(first)} and {grid.label(other)}"
    if needed is None and gap.overlap:  # what folds share stays in the error
        said = f"{MAX_SEEDS} seeds would not tell {which} apart either, since folds share their training images"
    else:
        seeds = f"more than {MAX_SEEDS} seeds, or more test images," if needed is None else f"{max(needed, ENOUGH_SEEDS)} seeds"
        said = f"{seeds} would tell {which} apart"
    return grid.prefixed_text(column, f"If means and spreads stay as they are, {said}.")


def _decisive(grid: Grid, column: Any) -> tuple[Row, Row, Difference] | tuple[None, None, None]:
    """The best mean, the cheapest arm that may be as good, and their difference; where no arm may be, one that is undecided."""
    first, *others = near_best(grid, column) or [None]
    others = others or undecided(grid, column)
    if first is None or not others:
        return None, None, None
    other = min(others, key=lambda row: macs(row.finished(column)) or inf)
    gap = grid.gap(first, other, column)
    assert gap is not None  # both have scores
    return first, other, gap


def _wanted(grid: Grid, column: Any) -> int:
    """Seeds that may name the best arm of a column; 0 where that is clear, or where more than MANY would be needed."""
    if not grid.ranking(column):
        open_yet = not grid.unranked_reason(column) and sum(bool(grid.scores(row, column)) for row in grid.rows) > 1
        return ENOUGH_SEEDS if open_yet else 0
    *_, gap = _decisive(grid, column)
    if gap is None:
        return 0
    needed = ENOUGH_SEEDS if gap.seeds < MIN_SEEDS else max(ENOUGH_SEEDS, gap.seeds_needed() or inf)
    return int(needed) if needed <= MANY else 0


def _more_seeds(grid: Grid, wanted: int) -> str:
    """What makes them so many, or tests every fold as often; empty where seeds are no axis of the sweep, or already as many."""
    seeds = grid.sweep.facts["axes"].get(SEED, [])
    if not 0 < len(seeds) < wanted:
        return ""
    more = ",".join(map(str, _evenly(seeds, wanted, grid.folds or 1)))
    return f"'axes.seed=[{more}]' for more seeds"


def _evenly(seeds: list[int], wanted: int, folds: int) -> list[int]:
    """These and the first others, so that they are at least so many, and each fold has as many."""
    each, chosen = max(-(-wanted // folds), *Counter(seed % folds for seed in seeds).values()), [*seeds]
    others = (seed for seed in count() if seed not in seeds)
    while len(chosen) < each * folds:
        seed = next(others)
        if sum(other % folds == seed % folds for other in chosen) < each:
            chosen.append(seed)
    return chosen


def _equal_costs(grid: Grid) -> str:
    """What to type for arms of equal cost beside those that there are; empty where there are some, where all cost about the same, and where
    steps rather than epochs end a run. It is the dearest arm's, which whole epochs of the others miss least."""
    equal, axes = grid.sweep.facts["equal"], grid.sweep.facts["axes"]
    by_column: dict[Any, dict[str, float]] = {}
    for row, column, done in grid.models():
        if spent := macs(done):
            by_column.setdefault(column, {})[row.arm.name] = spent
    spread = [costs for costs in by_column.values() if max(costs.values()) > UNEQUAL * min(costs.values())]
    by_steps = any(run.run.get("loop", {}).get("max_steps") is not None for run in grid.sweep.runs.values())
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
