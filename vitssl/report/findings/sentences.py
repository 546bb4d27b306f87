"""The report's sentences: facts that follow from the numbers alone."""

from __future__ import annotations

from collections import Counter
from statistics import mean

from vitssl.config import Site
from vitssl.config.evals import VAL_COUNTERPARTS
from vitssl.config.metrics import metric_of
from vitssl.costs.emissions import names_grid
from vitssl.report.findings import collapse, convergence
from vitssl.report.findings.advice import next_steps, recommendation
from vitssl.report.results import best, costs, energy, external_sources, schedule
from vitssl.report.results.collect import Sweep
from vitssl.report.results.energy import MAY_BE_DONE, intensities, unrecorded
from vitssl.report.results.grid import SEED, Grid, keep_result
from vitssl.report.results.stats import plus_minus
from vitssl.report.results.sums import add
from vitssl.report.table import number, signed
from vitssl.report.units import quantity
from vitssl.run_folder import lost_kwh
from vitssl.words import counted, few, listed

MOST_SUBJECTS, MOST_LINES = 5, 2  # that a report begins with; sentences of one that stands there
CONCLUSIONS, MOST_CONCLUSIONS = ("Comparison", "What to take"), 4  # what a report is read for may take more
Findings = dict[str, list[str]]  # sentences by what they are about


@keep_result
def findings(grid: Grid) -> Findings:
    """Return all sentences of a report by subject, the most important subject first."""
    parts = grid.parts
    places = [(part, column) for part in parts for column in part.columns]
    by_subject = {
        "Missing": [_missing(grid)],
        grid.axis_name or "Columns": [line for part in parts for line in best.across(part)],
        "Comparison": [line for part in parts for line in best.leading(part)],
        "One draw": [_one_draw(grid), *_one_start(grid)],
        "What to take": [recommendation(*place) for place in places],
        "What to add": [next_steps(grid)],
        "Best epoch": [_best_epoch(grid)],
        "Not selected": [_unselected(grid)],
        "Pretraining": [collapse.sentence(grid)],
        "Length of training": [convergence.sentence(grid)],
        "The paper": [_against_paper(grid)],
        "Labels": [schedule.images_learned(parts[0]), schedule.labels_shown(parts[0])],
        "Cost": [costs.comparison(*place) for place in places],
        "Images seen": [schedule.images_seen(grid)],
        "In all": [_total(grid.sweep), _left_out(grid.sweep)],
        "Waiting": [energy.waited(grid.sweep)],
    }
    return {subject: filled for subject, lines in by_subject.items() if (filled := list(filter(None, lines)))}


def headlines(grid: Grid) -> Findings:
    """Return the findings that a report begins with: the most important subjects that need few sentences."""
    most = dict.fromkeys(CONCLUSIONS, MOST_CONCLUSIONS)
    short = {subject: lines for subject, lines in findings(grid).items() if len(lines) <= most.get(subject, MOST_LINES)}
    return dict(list(short.items())[:MOST_SUBJECTS])


def further(grid: Grid) -> Findings:
    """Return the findings that `headlines` leaves out."""
    first = headlines(grid)
    return {subject: lines for subject, lines in findings(grid).items() if subject not in first}


def sentences(by_subject: Findings) -> list[str]:
    """Return the sentences of all subjects, in order."""
    return [line for lines in by_subject.values() for line in lines]


def progress(sweep: Sweep) -> str:
    """Return a sentence on how many runs are done, and on the states of the others."""
    counts = Counter(run.state for run in sweep.runs.values())
    rest = "".join(f"; {n} {state}" for state, n in counts.items() if state != "done")
    return f"{counts['done']} of {counted(len(sweep.runs), 'run')} {'is' if len(sweep.runs) == 1 else 'are'} done{rest}."


def _missing(grid: Grid) -> str:
    """Return a sentence on what a selection over axes still lacks; empty if nothing is missing."""
    lacking = [
        f"{grid.model_name(row, column)} ({selection.missing} of {len(selection.points)})"
        for row in grid.rows
        for column, selection in row.selections.items()
        if selection.missing
    ]
    return f"Some cells to select from are missing, so the choice may still change: {', '.join(lacking)}." if lacking else ""


def _unselected(grid: Grid) -> str:
    """Return a sentence on why no value of a hyper-parameter is named the best; empty if no axis sets one."""
    axes = grid.unselected_axes or ([grid.axis] if grid.axis is not None and grid.has_unselected_columns else [])
    if not axes:
        return ""
    how = "to choose on held-out images, set `select` in the sweep and data.val_fraction"
    if VAL_COUNTERPARTS.get(grid.metric[0]) is None:
        how = "`select` chooses on held-out images, but only by a classifier's metric, such as top1"
    return f"No best value of {listed(axes)} is named, since choosing it on test images would bias the result; {how}."


def _one_draw(grid: Grid) -> str:
    """Return a sentence saying that all seeds train on one draw of images or labels, so that intervals do not cover the draw.

    With folds, it says how these were made and tested.
    """
    if grid.folds:
        tested = {cell.last.config.seed % grid.folds for cell in grid.done}
        trains = f"each seed trains on all folds but the one it is tested on ({len(tested)} of {grid.folds} tested so far)"
        grouped = all((cell.last.job.get("data") or {}).get("groups") for cell in grid.done)
        how = " by groups of images that belong together" * grouped
        return f"Cross-validation{how}: {trains}. Near-duplicates between folds were not searched for."
    runs = [run.run for run in grid.sweep.runs.values() if run.run]
    for name in ("labels", "images"):
        subsets = [subset for run in runs if (subset := getattr(run.data, name)) is not None]
        drawn = [subset.seed for subset in subsets if subset.seed is not None and subset.fraction != 1 and not subset.redraw]
        if len({cell.axes.get(SEED) for cell in grid.sweep.cells}) > 1 and len(set(drawn)) == 1:
            covered = f"data.{name}.redraw=true draws anew for each seed, and the intervals then cover the draw"
            return f"All seeds train on the same draw of {name} (data.{name}.seed), so the intervals do not cover its effect; {covered}."
    return ""


def _one_start(grid: Grid) -> list[str]:
    """Return a sentence for each stage of which all seeds of a model share one run, so that intervals do not cover that stage."""
    shared: dict[str, list[str]] = {}
    for row, column, done in grid.models():
        for i, (stage, run) in enumerate(done[0].stages[:-1]):
            if len(done) > 1 and all(cell.stages[i][1].path == run.path for cell in done):
                shared.setdefault(stage, []).append(grid.model_name(row, column))
    rest = "so the intervals do not cover its effect"
    return [f"In {few(models)}, all seeds share one {stage} run, {rest}." for stage, models in shared.items()]


def _best_epoch(grid: Grid) -> str:
    """Return a sentence with the test results at the epoch that held-out images choose; for many models it names a table."""
    if grid.own_evaluator == "selected":  # as all figures are
        return ""
    key, how = best.chosen_metric(grid), best.chosen_by(grid)
    metric = metric_of(key)
    scores = {grid.model_name(row, column): grid.scores(row, column, ("selected", key)) for row, column, _ in grid.models()}
    readings = [f"{name} {plus_minus(list(of_seeds.values()))} {metric.unit}".rstrip() for name, of_seeds in scores.items() if of_seeds]
    shown = listed(readings) if len(readings) <= MOST_SUBJECTS else "see the table “Other readings of the same runs”"
    return f"Test {metric.name} at the epoch that held-out images choose{how}, which best.pt holds: {shown}." if readings else ""


def _against_paper(grid: Grid) -> str:
    """Return a sentence on the distance from the paper's numbers; empty if no model has one."""
    gaps = {}
    for row, column, _ in grid.models():
        scores, paper = grid.scores(row, column), grid.published(row, column)
        if scores and paper is not None:
            gaps[grid.model_name(row, column)] = mean(scores.values()) - paper
    if not gaps:
        return ""
    furthest = max(gaps, key=lambda k: abs(gaps[k]))
    distance = f"{mean(map(abs, gaps.values())):.2f}{grid.unit_suffix}"
    return f"The mean absolute difference from the paper's numbers is {distance}; the largest, for {furthest}, is {signed(gaps[furthest])}."


def _total(sweep: Sweep) -> str:
    """Return a sentence on the cost of the whole sweep; empty if nothing was recorded."""
    spent = add(run.spent for run in sweep.runs.values())
    if not spent["device_hours"]:
        return ""
    wasted = add(run.spent for run in sweep.runs.values() if run.state not in MAY_BE_DONE)["energy_kwh"]
    lost = sum(lost_kwh(run.events, run.emissions) for run in sweep.runs.values() if run.state == "done")
    parts = {"in runs that are not done": wasted, "in work lost when jobs were killed": lost}
    wasted_parts = [f"{quantity(kwh, 'kWh')} {where}" for where, kwh in parts.items() if kwh > 0.001 * spent["energy_kwh"]]
    rest = f", of which {listed(wasted_parts)}" if wasted_parts else ""
    hours, energy, co2e = quantity(spent["device_hours"], "hours", sweep.hours_name), spent["energy_kwh"], spent["co2e_kg"]
    money = f", {number(spent['money'])} {sweep.currency}" if spent["money"] else ""
    took = f"{hours}, {quantity(energy, 'kWh')} and {quantity(co2e, 'kg')} CO2e"
    missing = f"{unrecorded(sweep)}{external_sources.not_counted(sweep)}{external_sources.reused(sweep)}"
    whole = "The runs of this report, each" if sweep.others else "The whole sweep, each run"
    return f"{whole} counted once, took {took}{_assumed_grid(sweep)}{money}{rest}.{missing}"


def _left_out(sweep: Sweep) -> str:
    """Return a sentence saying that the folder holds runs of other commands, which this report leaves out; empty if it holds none."""
    if not sweep.others:
        return ""
    kept = "to bring them back, repeat the command that trained them; to keep both reports, set another name="
    return f"Not in this report: {external_sources.others(sweep)}, of other arms, values or fields; {kept}."


def _assumed_grid(sweep: Sweep) -> str:
    """Return, in parentheses, the grid used for CO2e if nobody named one or if a later command changed it; otherwise empty."""
    measured = [run for run in sweep.runs.values() if run.emissions]
    if any(run.converted for run in measured):
        named = next(intensities(run.emissions) for run in measured if run.converted)
        return f" (on the grid that the last command named, {listed(f'{name}: {kg} kg CO2e/kWh' for name, kg in named.items())})"
    if any(names_grid(run.site) for run in measured):
        return ""
    change = "repeating the command with site.country=DEU changes it and trains nothing"
    return f" (assuming the grid of the default country, {Site.country}; {change})"
