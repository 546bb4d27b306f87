"""Which arm is the best, as far as the seeds can tell."""

from __future__ import annotations

from statistics import mean
from typing import Any

from vitssl.report.grid import Grid
from vitssl.report.multiple import largest, settled
from vitssl.report.rows import Row
from vitssl.report.stats import LEAST, Difference
from vitssl.report.table import signed
from vitssl.report.tables import plus_minus
from vitssl.report.unlabelled import called, objectives
from vitssl.words import counted, listed

MOST_NAMED = 4  # columns or arms that a sentence names


def best(grid: Grid, column: Any) -> str:
    """The arm of the best mean and what it stands on: the best one only where the seeds tell it from all others."""
    ranked = grid.ranking(column)
    if not ranked:
        return _unranked(grid, column)
    if len(equal := grid.leaders(column)) > 1:
        return _equal(grid, equal, column)
    first, unit = ranked[0], " %" if grid.measured.unit else ""
    scores, near = list(grid.compared(first, column).values()), level(grid, column)
    shown = f"{grid.label(first)}: {plus_minus(scores)}{unit}"
    if len(near) > 1:
        place = f"{place}, " if (place := grid.place(column)) else ""
        return f"{place}{_level(grid, column, near)}; the best mean is that of {shown}{_versus(grid, ranked, column)}."
    number = f"{counted(len(scores), 'seed')}{_of_all(grid, column)}{_tested(grid, ranked, column, ', ')}"
    said = f"{_on(grid, column, article(grid, column))} best arm by {grid.measured.name} is {shown} ({number})"
    sure = largest(grid, column, [(first, row) for row in ranked[1:]])
    return f"{said}{_versus(grid, ranked, column)}{f'; {sure}' if sure else ''}."


def article(grid: Grid, column: Any) -> str:
    """Of the best arm, where that differs from every other one: after the correction for all comparisons it may not."""
    first, *others = grid.ranking(column)
    clear = not undecided(grid, column) and all(settled(grid, column, (first, row)) for row in others)
    return "the" if clear else "perhaps the"


def in_columns(grid: Grid) -> list[str]:
    """The sentence of every column; one for both of two where the same arms are not told apart."""
    ranked = {column: grid.ranking(column) for column in grid.columns}
    if len(ranked) != 2 or not all(ranked.values()) or any(len(grid.leaders(column)) > 1 for column in ranked):
        return [best(grid, column) for column in grid.columns]
    near = {column: level(grid, column) for column in ranked}
    said = {_level(grid, column, [row for row in grid.rows if row in rows]) for column, rows in near.items()}
    if len(said) != 1 or min(map(len, near.values())) < 2:
        return [best(grid, column) for column in grid.columns]
    unit = " %" if grid.measured.unit else ""
    shown = {column: plus_minus(list(grid.compared(rows[0], column).values())) for column, rows in ranked.items()}
    places = {column: place[:1].lower() + place[1:] for column in ranked if (place := grid.place(column))}
    means = [
        f"{places[column]} {grid.label(rows[0])} {shown[column]}{unit}{_versus(grid, rows, column)}" for column, rows in ranked.items()
    ]
    return [f"{said.pop()}; the best means: {'; '.join(means)}."]


def _level(grid: Grid, column: Any, near: list[Row]) -> str:
    """Which arms of a column are not told apart, and by what."""
    seeds = fewest(grid, grid.ranking(column), column)
    who = f"{seeds} seeds{_of_all(grid, column)}{_tested(grid, near, column, ' and ') if len(near) > 1 else ''}"
    how = "cannot tell" if seeds >= LEAST else "are too few to tell"
    return f"{who} {how} {_named(grid, near)} apart in {grid.measured.name}"


def _of_all(grid: Grid, column: Any) -> str:
    """That arms are compared by fewer seeds than some of them have."""
    most = max(len(grid.scores(row, column)) for row in grid.rows)
    return " that all arms have" if most > len(grid.seeds_of_all(column)) else ""


def _tested(grid: Grid, rows: list[Row], column: Any, before: str) -> str:
    """The images that intervals cover, where they do."""
    gap = grid.gap(rows[0], rows[1], column)
    return f"{before}{gap.images:,} test images" if gap and gap.images else ""


def fewest(grid: Grid, rows: list[Row], column: Any) -> int:
    """Of the rows' seeds."""
    return min(len(grid.compared(row, column)) for row in rows)


def level(grid: Grid, column: Any) -> list[Row]:
    """The row of the best mean, and the next ones as long as none is told from one before it: one that the seeds tell from none is not as
    good as these where its mean is worse than that of one which is told."""
    near: list[Row] = []
    for row in grid.ranking(column):
        if not all(_open(grid, better, row, column) for better in near):
            break
        near.append(row)
    return near


def undecided(grid: Grid, column: Any) -> list[Row]:
    """The rows behind those that are told from none of them either."""
    near = level(grid, column)
    return [row for row in grid.ranking(column)[len(near) :] if all(_open(grid, better, row, column) for better in near)]


def _open(grid: Grid, one: Row, other: Row, column: Any) -> bool:
    """May the difference between two ranked rows be chance?"""
    gap = grid.gap(one, other, column)
    assert gap is not None  # both have scores
    return gap.open


def _named(grid: Grid, rows: list[Row]) -> str:
    return listed(map(grid.label, rows)) if len(rows) <= MOST_NAMED else f"{len(rows)} arms"


def _versus(grid: Grid, ranked: list[Row], column: Any) -> str:
    """The first row against its baseline; of rows that the seeds do not tell from it against one of these."""
    near, base = level(grid, column), grid.baseline(ranked[0])
    base = next((row for row in near[1:] if row is base), near[1]) if len(near) > 1 else base
    gap = grid.gap(ranked[0], base, column) if base else None
    if base is None or gap is None:
        return ""
    told = [interval(gap)] if gap.seeds >= LEAST or gap.constant else []  # that seeds are too few for one is said before
    told += [f"over the {gap.seeds} seeds that both have"] if gap.seeds != len(grid.compared(ranked[0], column)) else []
    shown = f" ({', '.join(told)})" if told else ""
    return f", {signed(gap.mean)}{grid.points} against {grid.label(base)}{shown}"


def interval(gap: Difference) -> str:
    """In words, or why there is none."""
    if gap.low is None or gap.high is None:
        return f"in each of {counted(gap.seeds, 'seed')}" if gap.constant else gap.how
    return f"95 % interval {signed(gap.low)} to {signed(gap.high)}"


def _equal(grid: Grid, rows: list[Row], column: Any) -> str:
    """Several arms of the best mean; where all of their seeds gave the same, what one has more may not have worked."""
    names, name, unit = listed(map(grid.label, rows)), grid.measured.name, " %" if grid.measured.unit else ""
    scores = [grid.compared(row, column) for row in rows]
    if all(other == scores[0] for other in scores):
        seeds = f"in each of the {len(scores[0])} seeds"
        same = f"{names} gave the same {name} {seeds}: {plus_minus(list(scores[0].values()))}{unit}"
        return f"{_at(grid, column)}{same}{_without_effect(rows, column)}."
    near = level(grid, column)
    told = f"{_level(grid, column, near)}; " if len(near) > 1 else ""
    gap = grid.gap(rows[0], rows[1], column)
    width = f" ({interval(gap)} of the difference)" if gap and gap.low is not None else ""
    of_what = "" if told else f" {name}"
    return f"{_at(grid, column)}{told}{names} have the same mean{of_what}: {mean(scores[0].values()):.2f}{unit}{width}."


def _without_effect(rows: list[Row], column: Any) -> str:
    """The objectives that not all of the rows have."""
    of_rows = [{name for _, run in row.columns[column][0].stages for name in objectives(run)} for row in rows]
    more = sorted(set().union(*of_rows) - set.intersection(*of_rows))
    return f"; {listed(map(called, more))} may have had no effect, as after few steps" if more else ""


def _unranked(grid: Grid, column: Any) -> str:
    """Why no arm is named, where several have a result."""
    if grid.unselected:
        return ""
    if reason := grid.unchosen(column):
        return f"{_on(grid, column, 'no')} arm is named the best, since {reason}: the test images must not."
    counts = {grid.label(row): len(s) for row in grid.rows if (s := grid.scores(row, column))}
    single = [label for label, count in counts.items() if count == 1]
    if len(counts) < 2:
        return _alone(grid, column) if counts else ""
    if not single:
        return f"{_on(grid, column, 'no')} arm is named the best, since the arms have not two seeds in common{_measured(grid, column)}."
    who = "every arm has" if len(single) == len(counts) else f"{', '.join(single)} {'have' if len(single) > 1 else 'has'}"
    return f"{_on(grid, column, 'no')} arm is named the best, since {who} a single seed{_measured(grid, column)}."


def _alone(grid: Grid, column: Any) -> str:
    """What the only row has, or the only one with a result."""
    row = next(row for row in grid.rows if grid.scores(row, column))
    place, scores = grid.place(column), list(grid.scores(row, column).values())
    has = f"{grid.label(row)} has {plus_minus(scores)}{' %' if grid.measured.unit else ''} {grid.measured.name}"
    has = f"{has} ({counted(len(scores), 'seed')})"
    if len(grid.rows) > 1:
        others = ", and no other row of the table was run to its end"
    else:
        others = "" if place else ", and no other arm to be compared with"
    return f"{f'{place}, ' if place else ''}{has}{others}."


def _measured(grid: Grid, column: Any) -> str:
    """What few arms have, the highest first."""
    means = {grid.label(row): mean(scores.values()) for row in grid.rows if (scores := grid.scores(row, column))}
    if len(means) > MOST_NAMED:
        return ""
    order = sorted(means.items(), key=lambda arm: arm[1], reverse=not grid.measured.lower_is_better)
    unit = " %" if grid.measured.unit else ""
    (first, value), *others = order
    return f"; {listed([f'{first} has {value:.2f}{unit}', *(f'{label} {value:.2f}{unit}' for label, value in others)])}"


def leading(grid: Grid) -> list[str]:
    """What is best in one part of a sweep: of several columns in one sentence."""
    said = list(filter(None, (best(grid, column) for column in grid.columns)))
    return [_winners(grid) or said[0]] if len(said) > 1 else said


def _winners(grid: Grid) -> str:
    """How many of its columns each arm leads; empty where no arm is named in any."""
    leaders = [(grid.name(column), rows) for column in grid.columns if (rows := grid.leaders(column))]
    leads: dict[str, list[str]] = {}
    for name, rows in leaders:
        for row in rows:
            leads.setdefault(grid.label(row), []).append(name)
    if not leads:
        return ""
    place, best, count = grid.place(None), f"the best mean {grid.measured.name}", len(grid.columns)
    begin, rest = f"{place}, " if place else "", count - len(leaders)
    if len(leads) == 1:
        text = f"{begin}{next(iter(leads))} has {best} in {f'{len(leaders)} of' if rest else 'all'} {count} columns"
    else:
        text = f"{f'{begin}of' if begin else 'Of'} {count} columns, {best} is that of {', of '.join(_led(leads))}"
    text += "; where means are equal, each arm counts" if any(len(rows) > 1 for _, rows in leaders) else ""
    return f"{text}; in the other{'s' if rest > 1 else ''} no arm is named the best." if rest else f"{text}."


def _led(leads: dict[str, list[str]]) -> list[str]:
    """The arms that lead most columns, with how many and which."""
    order = sorted(leads.items(), key=lambda lead: -len(lead[1]))[:MOST_NAMED]
    return [f"{arm} in {len(on)}{f' ({names})' if len(on) <= MOST_NAMED and (names := ', '.join(on)) else ''}" for arm, on in order]


def _at(grid: Grid, column: Any) -> str:
    """Where a sentence holds, before what begins with names."""
    return f"{place} " if (place := grid.place(column)) else ""


def _on(grid: Grid, column: Any, first: str) -> str:
    """The same before any other word, which else begins the sentence."""
    return _at(grid, column) + first if grid.place(column) else first.capitalize()
