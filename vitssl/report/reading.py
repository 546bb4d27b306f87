"""The report's sentences: facts that follow from the numbers alone."""

from __future__ import annotations

from collections import Counter
from statistics import mean
from typing import Any

from vitssl.report.collect import Sweep, add
from vitssl.report.grid import Grid, cost_per_model
from vitssl.report.tables import hours_name, number, plus_minus, signed


def sentences(grid: Grid) -> list[str]:
    """In order: how far the sweep got, the best arm of every column, costs against the baseline, the paper, the total."""
    best = [_best(grid, column) for column in grid.columns]
    costs = [_cost_ratios(grid, column) for column in grid.columns]
    found = [_progress(grid.sweep), *best, *costs, _against_paper(grid), _total(grid.sweep)]
    return [sentence for sentence in found if sentence]


def _progress(sweep: Sweep) -> str:
    counts = Counter(run.status for run in sweep.runs.values())
    if not counts:
        return "Nothing has been run yet."
    rest = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "done")
    return f"{counts['done']} of {len(sweep.runs)} runs are done" + (f"; {rest}." if rest else ".")


def _best(grid: Grid, column: Any) -> str:
    means = {i: mean(s.values()) for i, row in enumerate(grid.rows) if (s := grid.scores(row, column))}
    if len(means) < 2:
        return ""
    row = grid.rows[max(means, key=lambda i: means[i])]
    scores = list(grid.scores(row, column).values())
    seeds = "one seed" if len(scores) == 1 else f"{len(scores)} seeds"
    text = f"{_on(grid.name(column))}the most accurate arm is {grid.label(row)}: {plus_minus(scores)} % ({seeds})"
    versus = grid.against_baseline(row, column)
    if versus is None:
        return f"{text}."
    interval = f", 95 % interval {signed(versus.low)} to {signed(versus.high)}" if versus.low is not None else ""
    return f"{text}, {signed(versus.mean)} points against {grid.sweep.facts['baseline']} ({versus.how}{interval})."


def _on(name: str) -> str:
    return f"On {name} " if name else "Overall "


def _cost_ratios(grid: Grid, column: Any) -> str:
    """Measured energy and hours of every arm against the baseline's."""
    found = []
    for row in grid.rows:
        base = grid.baseline(row)
        own, other = (cost_per_model(r.columns.get(column, [])) if r else None for r in (row, base))
        if own and other and other["energy_kwh"] and other["device_hours"]:
            energy, hours = own["energy_kwh"] / other["energy_kwh"], own["device_hours"] / other["device_hours"]
            found.append(f"{grid.label(row)} took {energy:.2f}x the energy and {hours:.2f}x the {hours_name(grid.sweep)}")
    where = f"On {name}, per" if (name := grid.name(column)) else "Per"
    return f"{where} model and against {grid.sweep.facts['baseline']}, {'; '.join(found)}." if found else ""


def _against_paper(grid: Grid) -> str:
    gaps = {}
    for row in grid.rows:
        for column in grid.columns:
            scores, paper = grid.scores(row, column), grid.published(row, column)
            if scores and paper is not None:
                gaps[f"{grid.label(row)}{f' on {name}' if (name := grid.name(column)) else ''}"] = mean(scores.values()) - paper
    if not gaps:
        return ""
    far = max(gaps, key=lambda k: abs(gaps[k]))
    distance = mean(map(abs, gaps.values()))
    return f"The mean distance from the paper's numbers is {distance:.2f} points; the largest, {far}, is {signed(gaps[far])}."


def _total(sweep: Sweep) -> str:
    spent = add(run.spent for run in sweep.runs.values())
    if not spent["device_hours"]:
        return ""
    wasted = add(run.spent for run in sweep.runs.values() if run.status != "done")["energy_kwh"]
    rest = f", of which {number(wasted)} kWh in runs that are not done" if wasted else ""
    hours, energy, co2e = (number(spent[k]) for k in ("device_hours", "energy_kwh", "co2e_kg"))
    currency = next(run.site.currency for run in sweep.runs.values())
    money = f", {number(spent['money'])} {currency}" if spent["money"] else ""
    return f"The whole sweep, each run counted once, took {hours} {hours_name(sweep)}, {energy} kWh and {co2e} kg CO2e{money}{rest}."
