"""The report's sentences: facts that follow from the numbers alone."""

from __future__ import annotations

from collections import Counter
from statistics import mean

from vitssl.config import Site
from vitssl.emissions import names_grid
from vitssl.lost import lost_kwh
from vitssl.report import across, costs, details, greenest, outside, schedule, unfinished, unlabelled
from vitssl.report.advice import next_steps, taken
from vitssl.report.best import in_columns, leading
from vitssl.report.collect import Sweep, add
from vitssl.report.energy_sources import intensities
from vitssl.report.grid import SEED, Grid
from vitssl.report.statement import unrecorded
from vitssl.report.stats import LEAST
from vitssl.report.table import number, signed
from vitssl.report.tables import hours_name
from vitssl.report.units import quantity
from vitssl.words import counted, listed

MOST_HEADLINES = 5  # subjects that a report begins with
LEADS = {
    "missing": "Missing",
    "best": "Comparison",
    "draw": "One draw",
    "recommended": "What to take",
    "next": "What would decide",
    "unfinished": "Length of training",
    "unselected": "Not selected",
    "images": "Labels",
    "costs": "Cost",
    "why": "Images without labels",
    "epochs": "Images seen",
    "paper": "The paper",
    "total": "In all",
}  # what a sentence is about, by its subject


def sentences(grid: Grid) -> list[str]:
    """All that is said, by subject: how far the sweep got, cells missing, the best arm of every column, and so on."""
    return [line for lines in _by_subject(grid).values() for line in lines if line]


def headlines(grid: Grid) -> list[str]:
    """What a report begins with: the best arm, labels, costs, epochs, the paper, what it took; how far it got, if there is no more."""
    said = _shortened(grid)
    progress_made = said.pop("progress")  # which the page's head says
    subjects = [lines for lines in said.values() if lines]
    first = [line for lines in subjects[:MOST_HEADLINES] for line in lines] or progress_made
    rest = _untold(grid, first)
    if len(rest) != 1:
        return first
    return first + rest if len(subjects) <= MOST_HEADLINES else first[: -len(subjects[MOST_HEADLINES - 1])]  # one sentence makes no section


def leads(grid: Grid) -> dict[str, str]:
    """What a sentence is about, in two words, by the sentence."""
    named, said = LEADS | {"across": grid.axis_name}, _by_subject(grid) | _shortened(grid)
    return {line: lead for subject, lines in said.items() if (lead := named.get(subject)) for line in lines}


def story(grid: Grid) -> list[str]:
    """What a newcomer reads first, in six paragraphs: how many labels there are, which arm came out best, what speaks against it, which to
    take, what would decide what is open, and what images without a label gave. The rest is for the report."""
    said = _shortened(grid)
    order = ("images", "across", "best", "draw", "unfinished", "recommended", "next", "why")
    return [line for subject in order for line in said[subject]]


def beside(grid: Grid) -> list[str]:
    """What a newcomer reads before that: how far the sweep got, what lacks, and what it took. The rest is for the report."""
    said = _shortened(grid)
    told = [line for subject in ("progress", "missing", "unselected", "paper") for line in said[subject]]
    return [*told, *filter(None, [_total(grid.sweep), _left_out(grid.sweep)])]


def _shortened(grid: Grid) -> dict[str, list[str]]:
    """The sentences by subject, without those that many columns would repeat."""
    said = {subject: [line for line in lines if line] for subject, lines in _by_subject(grid).items()}
    if len(said["best"]) > 2:
        said["best"] = [line for part in grid.parts() for line in leading(part)]
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
        "across": [across.sentence(part) for part in grid.parts()],
        "best": [line for part in grid.parts() for line in in_columns(part)],
        "draw": [_one_draw(grid)],
        "recommended": taken(grid),
        "next": [next_steps(grid)],
        "unselected": [_unselected(grid)],
        "unfinished": [unfinished.sentence(grid)],
        "costs": [*(costs.comparison(part, column) for part in grid.parts() for column in grid.columns), outside.of_rows(grid).strip()],
        "images": unlabelled.images(grid.parts()[0]),
        "why": [unlabelled.why(part, part.columns[0]) for part in grid.parts() if len(part.columns) == 1],  # of several a table says it
        "epochs": [schedule.sentence(grid)],
        "paper": [_against_paper(grid)],
        "total": [_total(grid.sweep), _left_out(grid.sweep), costs.other_work(grid), costs.uncounted(grid)],
        "seen": details.seen_without_labels(grid),
        "greenest": [greenest.sentence(grid.sweep)],
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


def _unselected(grid: Grid) -> str:
    """Why no value of a hyper-parameter is named the best."""
    if not grid.unselected:
        column = grid.short(grid.axis) if grid.axis and grid.unselected_columns else ""
        return f"Nothing selects over {column}: arms are compared at each of its values, and no value is named the best." if column else ""
    axes = " and ".join(grid.short(axis) for axis in grid.unselected)
    how = f"`select: [{', '.join(grid.unselected)}]` in the sweep, with data.val_fraction, lets held-out images choose"
    seeds = max((len(grid.scores(row, column)) for row in grid.rows for column in grid.columns), default=0)
    few = f" {seeds} seeds are too few for intervals." if 1 < seeds < LEAST else ""
    return f"Nothing selects over {axes}, and the test images must not, so that no arm is named the best; {how}.{few}"


def _one_draw(grid: Grid) -> str:
    """That all seeds train on one draw of few images or labels, so that a spread over them is of the training alone; or on which folds."""
    runs = [run.run for run in grid.sweep.runs.values() if run.run]
    seeds = {seed for cell in grid.sweep.cells if (seed := cell.axes.get(SEED)) is not None}
    if grid.folds:
        tested = {cell.last.run["seed"] % grid.folds for cell in grid.done}
        return f"Cross-validation: each seed trains on all folds but the one that it is tested on, {len(tested)} of {grid.folds} so far."
    for name in ("labels", "images"):
        subsets = [subset for run in runs if (subset := run["data"][name]) is not None]
        fewer = [subset for subset in subsets if subset["seed"] is not None and subset["fraction"] != 1]
        drawn = [subset for subset in fewer if not subset.get("redraw")]
        if len(seeds) > 1 and drawn and len({subset["seed"] for subset in drawn}) == 1:
            field = f"data.{name}"
            covered = f"{field}.redraw=true draws others with each, and the intervals cover that too"
            every = "Both" if len(seeds) == 2 else f"All {len(seeds)}"
            return f"{every} seeds train on one draw of {name} ({field}.seed), which the intervals do not cover; {covered}."
    return ""


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
    lost = sum(lost_kwh(run.events, run.emissions) for run in sweep.runs.values() if run.status == "done")
    parts = {"in runs that are not done": wasted, "in work that was lost when jobs were killed": lost}
    told = [f"{quantity(kwh, 'kWh')} {where}" for where, kwh in parts.items() if kwh > 0.001 * spent["energy_kwh"]]
    rest = f", of which {' and '.join(told)}" if told else ""
    hours, energy, co2e = quantity(spent["device_hours"], "hours", hours_name(sweep)), spent["energy_kwh"], spent["co2e_kg"]
    money = f", {number(spent['money'])} {sweep.currency}" if spent["money"] else ""
    took = f"{hours}, {quantity(energy, 'kWh')} and {quantity(co2e, 'kg')} CO2e"
    missing = f"{unrecorded(sweep)}{outside.of_sweep(sweep)}{outside.reused(sweep)}"
    return f"The whole sweep, each run counted once, took {took}{_assumed_grid(sweep)}{money}{rest}.{missing}"


def _left_out(sweep: Sweep) -> str:
    """That runs of other commands are in the folder, which an earlier report may have shown."""
    others = {path.parent for path in sweep.folder.glob("*/run.yaml")} - sweep.runs.keys()
    if not others:
        return ""
    kept = "the command that trained them brings them back, and another name= keeps both reports"
    return f"Not in this report: {counted(len(others), 'other run')} in its folder, of other arms, values or fields; {kept}."


def _assumed_grid(sweep: Sweep) -> str:
    """That nobody said where the energy came from, or that a later command did."""
    told = [run for run in sweep.runs.values() if run.emissions]
    if any(run.converted for run in told):
        named = next(intensities(run.emissions) for run in told if run.converted)
        return f" (on the grid that the last command names, {listed(f'{name}: {kg} kg CO2e/kWh' for name, kg in named.items())})"
    if any(names_grid(run.site) for run in told):
        return ""
    return f" (on the grid of the default country, {Site.country}; the same command with site.country=DEU takes another and trains nothing)"
