"""Which arm to take, and what to type where few seeds or unequal costs leave that open."""

from __future__ import annotations

from itertools import count
from math import ceil, inf
from typing import Any

from vitssl.report import tables
from vitssl.report.across import dominating
from vitssl.report.best import MOST_NAMED, article, fewest, level, undecided
from vitssl.report.costs import UNEQUAL, begin, macs
from vitssl.report.grid import SEED, Grid
from vitssl.report.multiple import largest, settled
from vitssl.report.rows import Row, finished
from vitssl.report.stats import ENOUGH, LEAST, MOST, Difference
from vitssl.words import listed

MANY = 10  # seeds that are worth to be asked for


def taken(grid: Grid) -> list[str]:
    """For every column what to take; first where that is clear."""
    clear_first = sorted(_places(grid), key=lambda place: len(level(*place)) > 1 if place[0].ranking(place[1]) else True)
    return [text for part, column in clear_first if (text := recommendation(part, column))]


def next_steps(grid: Grid) -> str:
    """How many seeds or images would tell what is open yet, and what to type for more seeds, and for arms of equal cost; empty where
    nothing is open, and where runs are to come, which may decide by themselves."""
    if any(run.status != "done" for run in grid.sweep.runs.values()):
        return ""
    needed = [text for part, column in _places(grid) if (text := _needed(part, column))]
    more = _more_seeds(grid, max((_wanted(part, column) for part, column in _places(grid)), default=0))
    added = [words for words in (more, _equal_costs(grid) if taken(grid) else "") if words]
    return " ".join([*needed, *([f"To the sweep's command add {listed(added)}: finished runs are kept."] if added else [])])


def _places(grid: Grid) -> list[tuple[Grid, Any]]:
    """Every part, and the columns of it of which one may be taken."""
    return [(part, column) for part in grid.parts() for column in _columns(part)]


def _columns(grid: Grid) -> list[Any]:
    """Those of which one may be taken."""
    best = dominating(grid)
    return grid.columns if best is None else [best]


def recommendation(grid: Grid, column: Any) -> str:
    """The arm of the fewest multiply-adds of those that are not told from the best one, beside that; of few seeds for the time being.

    Empty where too few could tell, where multiply-adds are not known of every arm, or where the test images would choose that arm's
    hyper-parameters.
    """
    ranked = grid.ranking(column)
    costs = [macs(finished(row.columns[column])) for row in ranked]
    if not ranked or None in costs or (seeds := fewest(grid, ranked, column)) < LEAST:
        return ""
    cost = {id(row): count for row, count in zip(ranked, costs, strict=True)}
    near, leaders = level(grid, column), grid.leaders(column)
    first = min(leaders, key=lambda row: cost[id(row)])
    shares = {id(other): cost[id(other)] / cost[id(first)] for other in ranked}
    cheapest = min(near, key=lambda row: cost[id(row)])
    row = cheapest if shares[id(cheapest)] < 1 / UNEQUAL else first
    open_yet = seeds < ENOUGH or _equal_costs(grid)  # what to type is said
    take = f"{begin(grid, column, 'For')} now take" if open_yet else f"{begin(grid, column, 'What')} to take:"
    which = "the best mean" if len(near) > 1 else f"{article(grid, column)} best"
    if others := [row for row in leaders if row is not first]:
        which = f"of the same mean as {listed(map(grid.label, others))}"
    chosen = f"{grid.label(first)}, {which}{_cost_beside(list(shares.values()))}"
    if row is not first:
        if grid.settings_of(row, column):
            return ""
        chosen = _either(grid, column, row, shares[id(row)])
    return f"{take} {chosen}.{_worse(grid, column, shares)}"


def _cost_beside(shares: list[float]) -> str:
    """What the best arm costs beside all, of which it is one; empty where others cost less."""
    if max(shares) < UNEQUAL and min(shares) > 1 / UNEQUAL:
        return " at equal cost"
    return " and the cheapest" if min(shares) == 1 else ""


def _needed(grid: Grid, column: Any) -> str:
    """How many seeds, or test images, would tell the best mean from the arm that may be taken in its place."""
    first, other, gap = _decisive(grid, column)
    if gap is None or gap.half() is None or not gap.mean:
        return ""
    which = f"{grid.label(first)} and {grid.label(other)}"
    if gap.images and (share := gap.images_half() / abs(gap.mean)) >= 1:
        few = f"{begin(grid, column, 'However')} many seeds there are, {gap.images:,} test images are too few to tell {which} apart"
        return f"{few}: it takes more than {_rounded_up(gap.images * share**2):,}, if the means stay as they are."
    count = gap.seeds_needed()
    if count is not None and gap.seeds < ENOUGH:
        count = max(count, ENOUGH)  # as many as are asked for
    seeds = f"more than {MOST}" if count is None else f"{count}" if count <= MANY else f"about {count}"
    return f"{begin(grid, column, 'If')} means and spreads stay as they are, {seeds} seeds would tell {which} apart."


def _decisive(grid: Grid, column: Any) -> tuple[Row, Row, Difference] | tuple[None, None, None]:
    """The best mean, the cheapest arm that may be as good, or the next one where that is the best mean itself, and their difference; where
    no arm may be, one that is undecided."""
    first, *others = level(grid, column) if grid.ranking(column) else [None]
    if first is None or not (others := others or undecided(grid, column)):
        return None, None, None
    costs = {id(row): macs(finished(row.columns[column])) or inf for row in (first, *others)}
    other = min(others, key=lambda row: min(costs[id(row)], costs[id(first)]))
    gap = grid.gap(first, other, column)
    assert gap is not None  # both have scores
    return first, other, gap


def _rounded_up(count: float) -> int:
    """To two digits."""
    unit = 10 ** max(0, len(f"{count:.0f}") - 2)
    return ceil(count / unit) * unit


def _few(gap: Difference) -> int:
    """The seeds that would tell a pair apart; 0 where these are too many to be asked for, or no number is enough."""
    needed = gap.seeds_needed()
    return needed if needed is not None and needed <= MANY else 0


def _worse(grid: Grid, column: Any, shares: dict[int, float]) -> str:
    """The arms that are told from one that may be the best, by how much, and after which share of the best one's training: after all of it
    they may not be."""
    near = level(grid, column)
    gaps = [(row, *told) for row in grid.ranking(column) if (told := _told_from(grid, column, row, near))]
    parted: dict[bool, list[tuple[Row, Row, Difference]]] = {True: [], False: []}
    for row, than, gap in gaps:
        parted[settled(grid, column, (row, than))].append((row, than, gap))
    worse = _named("Worse", grid, column, parted[True], shares) + _named("Perhaps worse", grid, column, parted[False], shares)
    if not (rest := undecided(grid, column)):
        return worse
    which = listed(map(grid.label, rest)) if len(rest) <= MOST_NAMED else f"{len(rest)} arms"
    return f"{worse} Undecided: {which}, of a worse mean, which the seeds do not tell from it."


def _named(how: str, grid: Grid, column: Any, gaps: list[tuple[Row, Row, Difference]], shares: dict[int, float]) -> str:
    """How arms are against others; empty of none."""
    if not gaps:
        return ""
    of_first = f" the multiply-adds of {grid.label(level(grid, column)[0])}"
    if len(gaps) > MOST_NAMED:
        costs_of = [shares[id(row)] for row, *_ in gaps]
        which = f"{len(gaps)} arms ({min(costs_of):.2f}x to {max(costs_of):.2f}x{of_first})"
    else:
        costs = [f"{shares[id(row)]:.2f}x" for row, *_ in gaps]
        costs[0] += of_first  # the first says of what
        which = listed(
            f"{grid.label(row)} ({cost}) {tables.interval(gap)} against {grid.label(than)}"
            for cost, (row, than, gap) in zip(costs, gaps, strict=True)
        )
    sure = largest(grid, column, [(row, than) for row, than, _ in gaps])
    return f" {how}: {which}{f' ({sure})' if sure else ''}."


def _told_from(grid: Grid, column: Any, row: Row, near: list[Row]) -> tuple[Row, Difference] | None:
    """The first of the level rows that a row is told from, and by how much."""
    gaps = ((than, grid.gap(row, than, column)) for than in near)
    return next(((than, gap) for than, gap in gaps if gap is not None and not gap.open), None)


def _either(grid: Grid, column: Any, row: Row, share: float) -> str:
    """One that costs a share of the arm of the best mean, and that: which of the two matters is not the report's to say."""
    best = grid.ranking(column)[0]
    gap, first = grid.gap(best, row, column), grid.label(best)
    assert gap is not None
    cheap = f"{grid.label(row)} if cost matters (its training takes {share:.2f}x the multiply-adds of {first})"
    good = f"{first} if {grid.measured.name} does (its mean is better by {abs(gap.mean):.2f}{grid.points}, which may be chance)"
    return f"{cheap} and {good}"


def _wanted(grid: Grid, column: Any) -> int:
    """Seeds that may name the best arm of a column; 0 where that is clear, or where the test images alone are too few."""
    if not grid.ranking(column):
        open_yet = not grid.unchosen(column) and sum(bool(grid.scores(row, column)) for row in grid.rows) > 1
        return ENOUGH if open_yet else 0
    *_, gap = _decisive(grid, column)
    if gap is None:
        return 0
    if gap.seeds < LEAST:
        return ENOUGH
    few = _few(gap)
    return max(few, ENOUGH) if few else 0


def _more_seeds(grid: Grid, wanted: int) -> str:
    """What makes them so many; empty where seeds are no axis of the sweep, or already as many."""
    seeds = (grid.sweep.facts.get("axes") or {}).get(SEED) or []
    if not 0 < len(seeds) < wanted:
        return ""
    others = (seed for seed in count() if seed not in seeds)
    more = ",".join(str(seed) for seed in [*seeds, *(next(others) for _ in range(wanted - len(seeds)))])
    return f"'axes.seed=[{more}]' for more seeds"


def _equal_costs(grid: Grid) -> str:
    """What to type for arms of equal cost beside those that there are; empty where there are some, where all cost about the same, and where
    steps rather than epochs end a run. It is the dearest arm's, which whole epochs of the others miss least."""
    equal, axes = grid.sweep.facts.get("equal") or {}, grid.sweep.facts.get("axes") or {}
    by_column: dict[Any, dict[str, float]] = {}
    for row, column, done in grid.models():
        if spent := macs(done):
            by_column.setdefault(column, {})[row.arm.name] = spent
    spread = [costs for costs in by_column.values() if max(costs.values()) > UNEQUAL * min(costs.values())]
    by_steps = any(run.run.get("loop", {}).get("max_steps") is not None for run in grid.sweep.runs.values())
    if equal.get("all") or not spread or by_steps:
        return ""
    same = f"{{equalize: macs, equal_to: {max(spread[0], key=spread[0].__getitem__)}}}"
    added = f"'axes.cost={{given epochs: {{}}, equal MACs: {same}}}'"
    for axis, values in (equal.get("axes") or {}).items():
        chosen = [str(value) for value in axes.get(axis, [])]
        others = [value for value, rule in values.items() if rule and value not in chosen]
        if not others:
            return ""
        added = f"'axes.{axis}=[{','.join([*chosen, *others])}]'"
    return f"{added} for arms of equal cost"
