"""The report's sentences: facts that follow from the numbers alone."""

from __future__ import annotations

from collections import Counter
from statistics import mean
from typing import Any

from vitssl.report import costs, schedule, unlabelled
from vitssl.report.collect import Sweep, add
from vitssl.report.grid import Grid
from vitssl.report.stats import Difference, difference
from vitssl.report.table import number, signed
from vitssl.report.tables import hours_name, plus_minus
from vitssl.report.units import quantity
from vitssl.words import counted, listed

MOST_HEADLINES, MOST_NAMED = 5, 4  # sentences that a report begins with; columns or arms that one of them names


def sentences(grid: Grid) -> list[str]:
    """All that is said, by subject: how far the sweep got, cells missing, the best arm of every column, and so on."""
    return [line for lines in _by_subject(grid).values() for line in lines if line]


def headlines(grid: Grid) -> list[str]:
    """What a report begins with: the best arm, labels, costs, epochs, the paper, what it took; how far it got, if there is no more."""
    said = _shortened(grid)
    progress_made = said.pop("progress")  # which the page's head says
    first = [line for lines in said.values() for line in lines][:MOST_HEADLINES] or progress_made
    rest = _untold(grid, first)
    if len(rest) != 1:
        return first
    return first + rest if len(first) < MOST_HEADLINES else first[:-1]  # one sentence makes no section


def story(grid: Grid) -> list[str]:
    """What a newcomer reads first: how many labels there are, which arm came out best, and what taught it."""
    said = _shortened(grid)
    return [*said["images"], *said["best"], *said["why"]]


def _shortened(grid: Grid) -> dict[str, list[str]]:
    """The sentences by subject, without those that many columns would repeat."""
    said = {subject: [line for line in lines if line] for subject, lines in _by_subject(grid).items()}
    if len(said["best"]) > 2:
        said["best"] = [line for part in grid.parts() for line in _leading(part)]
    for subject in ("images", "why", "recommended", "costs"):
        if len(said[subject]) > 2:
            said[subject] = []
    return said


def further(grid: Grid) -> list[str]:
    """What a report says after what it begins with."""
    return _untold(grid, headlines(grid))


def _untold(grid: Grid, told: list[str]) -> list[str]:
    """The sentences that are left; the page's head tells how far the sweep got."""
    return [line for line in sentences(grid) if line not in (*told, progress(grid.sweep))]


def _by_subject(grid: Grid) -> dict[str, list[str]]:
    return {
        "progress": [progress(grid.sweep)],
        "missing": [_missing(grid)],
        "best": [_best(part, column) for part in grid.parts() for column in grid.columns],
        "unselected": [_unselected(grid)],
        "images": unlabelled.images(grid.parts()[0]),
        "recommended": [costs.recommendation(part, column) for part in grid.parts() for column in grid.columns],
        "costs": [costs.comparison(part, column) for part in grid.parts() for column in grid.columns],
        "why": [unlabelled.why(part, column) for part in grid.parts() for column in grid.columns],
        "epochs": [schedule.sentence(grid)],
        "paper": [_against_paper(grid)],
        "total": [_total(grid.sweep), costs.other_work(grid), costs.uncounted(grid)],
    }


def progress(sweep: Sweep) -> str:
    """How many runs are done, and what the others are."""
    counts = Counter(run.status for run in sweep.runs.values())
    if not counts:
        return "Nothing has been run yet."
    rest = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "done")
    verb = "is" if 1 in (counts["done"], len(sweep.runs)) else "are"
    done = f"{counts['done']} of {counted(len(sweep.runs), 'run')} {verb} done"
    return f"{done}; {rest}." if rest else f"{done}."


def _missing(grid: Grid) -> str:
    """The cells that lack where the sweep selects over axes."""
    counts = {
        f"{grid.label(row)}{f' on {name}' if (name := grid.name(column)) else ''}": f"{selection.missing} of {len(selection.points)}"
        for row in grid.rows
        for column, selection in row.selections.items()
        if selection.missing
    }
    lacking = ", ".join(f"{place} ({count})" for place, count in counts.items())
    return f"Cells to select from are missing, so that the choice may change: {lacking}." if counts else ""


def _best(grid: Grid, column: Any) -> str:
    ranked = grid.ranking(column)
    if not ranked:
        return _unranked(grid, column)
    first = list(grid.scores(ranked[0], column).values())
    if len(equal := grid.leaders(column)) > 1:
        names, spreads = listed(map(grid.label, equal)), {plus_minus(list(grid.scores(row, column).values())) for row in equal}
        shown = plus_minus(first) if len(spreads) == 1 else f"{mean(first):.2f}"
        return f"{_on(grid, column)}{names} are equal in {grid.measured.name}: {shown}{' %' if grid.measured.unit else ''}."
    unit = " %" if grid.measured.unit else ""
    best = f"{_on(grid, column)}the best arm by {grid.measured.name} is {grid.label(ranked[0])}"
    text = f"{best}: {plus_minus(first)}{unit} ({counted(len(first), 'seed')})"
    if versus := grid.against_baseline(ranked[0], column):
        text += f", {signed(versus.mean)}{grid.points} against {grid.baseline_name(ranked[0])} ({_interval(versus)})"
    lead = difference(*(grid.scores(row, column) for row in ranked[:2]))
    if lead and lead.contains_zero and ranked[1] != grid.baseline(ranked[0]):
        text += f"; {signed(lead.mean)} against {grid.label(ranked[1])} ({_interval(lead)})"
    return f"{text}."


def _unranked(grid: Grid, column: Any) -> str:
    """Why no arm is named, where several have a result."""
    if grid.unselected:
        return ""
    if reason := grid.unchosen(column):
        return f"{_on(grid, column)}no arm is named the best, since {reason}: the test images must not."
    counts = {grid.label(row): len(s) for row in grid.rows if (s := grid.scores(row, column))}
    single = [label for label, count in counts.items() if count == 1]
    if len(counts) < 2:
        return ""
    who = "every arm has" if len(single) == len(counts) else f"{', '.join(single)} {'have' if len(single) > 1 else 'has'}"
    return f"{_on(grid, column)}no arm is named the best, since {who} a single seed."


def _unselected(grid: Grid) -> str:
    """Why no value of a hyper-parameter is named the best."""
    if not grid.unselected:
        column = grid.short(grid.axis) if grid.axis and grid.unselected_columns else ""
        return f"Nothing selects over {column}: arms are compared at each of its values, and no value is named the best." if column else ""
    axes = " and ".join(grid.short(axis) for axis in grid.unselected)
    how = f"`select: [{', '.join(grid.unselected)}]` in the sweep, with data.val_fraction, lets held-out images choose"
    return f"Nothing selects over {axes}, and the test images must not, so that no arm is named the best; {how}."


def _leading(grid: Grid) -> list[str]:
    """What is best in one part of a sweep: of several columns in one sentence."""
    said = list(filter(None, (_best(grid, column) for column in grid.columns)))
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


def _interval(gap: Difference) -> str:
    zero = ", which contains 0: this may be chance" if gap.contains_zero else ""
    return f"{gap.how}, 95 % interval {signed(gap.low)} to {signed(gap.high)}{zero}"


def _on(grid: Grid, column: Any) -> str:
    return f"{grid.place(column) or 'Overall'} "


def _against_paper(grid: Grid) -> str:
    gaps = {}
    for row in grid.rows:
        for column in grid.columns:
            scores, paper = grid.scores(row, column), grid.published(row, column)
            if scores and paper is not None:
                gaps[f"{grid.label(row)}{f' on {name}' if (name := grid.name(column)) else ''}"] = mean(scores.values()) - paper
    if not gaps:
        return ""
    furthest = max(gaps, key=lambda k: abs(gaps[k]))
    distance = f"{mean(map(abs, gaps.values())):.2f}{grid.points}"
    return f"The mean distance from the paper's numbers is {distance}; the largest, {furthest}, is {signed(gaps[furthest])}."


def _total(sweep: Sweep) -> str:
    spent = add(run.spent for run in sweep.runs.values())
    if not spent["device_hours"]:
        return ""
    wasted = add(run.spent for run in sweep.runs.values() if run.status != "done")["energy_kwh"]
    rest = f", of which {quantity(wasted, 'kWh')} in runs that are not done" if wasted > 0.001 * spent["energy_kwh"] else ""
    hours, energy, co2e = quantity(spent["device_hours"], "hours", hours_name(sweep)), spent["energy_kwh"], spent["co2e_kg"]
    money = f", {number(spent['money'])} {sweep.currency}" if spent["money"] else ""
    took = f"{hours}, {quantity(energy, 'kWh')} and {quantity(co2e, 'kg')} CO2e"
    return f"The whole sweep, each run counted once, took {took}{money}{rest}."
