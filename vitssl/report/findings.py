"""The report's sentences: facts that follow from the numbers alone."""

from __future__ import annotations

from collections import Counter
from statistics import mean
from typing import Any

from vitssl.report.collect import Sweep, add
from vitssl.report.grid import Grid, cost_per_model
from vitssl.report.stats import Difference, difference
from vitssl.report.tables import hours_name, number, plus_minus, signed


def sentences(grid: Grid) -> list[str]:
    """In order: how far the sweep got, cells missing, the best arm of every column, costs against the baseline, the paper, the total."""
    best = [_best(grid, column) for column in grid.columns]
    costs = [_cost_ratios(grid, column) for column in grid.columns]
    lines = [_progress(grid.sweep), _missing(grid), *best, *costs, _against_paper(grid), _total(grid.sweep)]
    return [sentence for sentence in lines if sentence]


def _progress(sweep: Sweep) -> str:
    counts = Counter(run.status for run in sweep.runs.values())
    if not counts:
        return "Nothing has been run yet."
    rest = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "done")
    return f"{counts['done']} of {len(sweep.runs)} runs are done" + (f"; {rest}." if rest else ".")


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
    unit = " %" if grid.measured.unit else ""
    best = f"{_on(grid.name(column))}the best arm by {grid.measured.name} is {grid.label(ranked[0])}"
    text = f"{best}: {plus_minus(first)}{unit} ({len(first)} seeds)"
    if versus := grid.against_baseline(ranked[0], column):
        text += f", {signed(versus.mean)}{_points(grid)} against {grid.baseline_name(ranked[0])} ({_interval(versus)})"
    lead = difference(*(grid.scores(row, column) for row in ranked[:2]))
    if lead and lead.contains_zero and ranked[1] != grid.baseline(ranked[0]):
        text += f"; {signed(lead.mean)} against {grid.label(ranked[1])} ({_interval(lead)})"
    return f"{text}."


def _unranked(grid: Grid, column: Any) -> str:
    """Why no arm is named, where several have a result."""
    counts = {grid.label(row): len(s) for row in grid.rows if (s := grid.scores(row, column))}
    single = [label for label, count in counts.items() if count == 1]
    if len(counts) < 2:
        return ""
    who = "every arm has" if len(single) == len(counts) else f"{', '.join(single)} {'have' if len(single) > 1 else 'has'}"
    return f"{_on(grid.name(column))}no arm is named the best, since {who} a single seed."


def _points(grid: Grid) -> str:
    return " points" if grid.measured.unit == "%" else ""


def _interval(gap: Difference) -> str:
    zero = ", which contains 0: this may be chance" if gap.contains_zero else ""
    return f"{gap.how}, 95 % interval {signed(gap.low)} to {signed(gap.high)}{zero}"


def _on(name: str) -> str:
    return f"On {name} " if name else "Overall "


def _cost_ratios(grid: Grid, column: Any) -> str:
    """Measured energy and hours of every arm against the baseline's."""
    ratios = []
    for row in grid.rows:
        base = grid.baseline(row)
        cost, reference = (cost_per_model(r.columns.get(column, [])) if r else None for r in (row, base))
        if cost and reference and reference["energy_kwh"] and reference["device_hours"]:
            energy, hours = cost["energy_kwh"] / reference["energy_kwh"], cost["device_hours"] / reference["device_hours"]
            ratios.append(f"{grid.label(row)} took {energy:.2f}x the energy and {hours:.2f}x the {hours_name(grid.sweep)}")
    where = f"On {name}, per" if (name := grid.name(column)) else "Per"
    return f"{where} model and against {grid.baselines()}, {'; '.join(ratios)}." if ratios else ""


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
    distance = f"{mean(map(abs, gaps.values())):.2f}{_points(grid)}"
    return f"The mean distance from the paper's numbers is {distance}; the largest, {furthest}, is {signed(gaps[furthest])}."


def _total(sweep: Sweep) -> str:
    spent = add(run.spent for run in sweep.runs.values())
    if not spent["device_hours"]:
        return ""
    wasted = add(run.spent for run in sweep.runs.values() if run.status != "done")["energy_kwh"]
    rest = f", of which {number(wasted)} kWh in runs that are not done" if wasted else ""
    hours, energy, co2e = (number(spent[k]) for k in ("device_hours", "energy_kwh", "co2e_kg"))
    money = f", {number(spent['money'])} {sweep.currency}" if spent["money"] else ""
    return f"The whole sweep, each run counted once, took {hours} {hours_name(sweep)}, {energy} kWh and {co2e} kg CO2e{money}{rest}."
