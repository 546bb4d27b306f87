"""The main table of a report, which LaTeX shows for a paper, too: arms against columns that may be asked for by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from vitssl.config import ConfigError, active
from vitssl.config.base import closest
from vitssl.config.evals import VAL_COUNTERPARTS
from vitssl.report.results import costs, external_sources, schedule
from vitssl.report.results.best import near_best, weights_text
from vitssl.report.results.collect import Cell, Sweep
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row, cost_per_model
from vitssl.report.results.stats import plus_minus
from vitssl.report.table import BAD, DASH, NOTE, Entry, Table, figure, signed
from vitssl.report.tables import differences as of_all
from vitssl.report.tables.entries import LOWER_IS_BETTER, currency, difference_entry, model_entries, published, training
from vitssl.report.units import fit
from vitssl.words import counted, few, listed

EQUAL = {"macs": "multiply-adds", "gpu_hours": "hours", "kwh": "energy"}
MEASURED_COSTS = {"hours", "kwh", "co2e", "co2e_estimate", "money"}
TRAINING_COSTS = {"training_macs", *MEASURED_COSTS}
SIZE_COLUMNS = ("params_train", "params", "activations", "gmacs", "gmacs_inference", "images_per_s")
UNCORRECTED = "Pairing by seed removes what affects all arms alike; intervals are not corrected for multiple comparisons."
BOLD = "the best mean and the arms that do not differ significantly from it (p > 0.05 after Holm's correction); none if no arm does"
MEANT = {"difference": " (it is the difference from the paper's number; that from the baseline is called baseline)"}
FEW_COLUMNS = 2  # with more columns of the sweep, there is no room for differences and costs of training
FEW_KINDS = 6  # the most combinations of objectives that the caption names


@dataclass(frozen=True)
class Column:
    """A column that can be asked for: its header, and its entry for a row of the grid and a column of the sweep."""

    header: str  # what is in braces depends on the sweep (`_header`)
    entry: Callable[[Grid, Row, Any], Entry]


def table(grid: Grid, names: list[str] | None = None) -> Table:
    """Return a line for each arm, with its figures for each column of the sweep (data set); figures equal in all columns stand once.

    Args:
        grid: the rows to show.
        names: of COLUMNS; None: those that fit on a page.

    Raises:
        ConfigError: a name is not one of COLUMNS.
    """
    names = check(names) if names else usual(grid)
    equal = [name for name in names if len(grid.columns) > 1 and _equal(grid, name)]
    unequal = [name for name in names if name not in equal]
    places = [(column, name) for column in grid.columns for name in unequal] + [(grid.columns[0], name) for name in equal]
    rows = [[Entry(grid.label(row)), *(COLUMNS[name].entry(grid, row, column) for column, name in places)] for row in grid.rows]
    groups = [("", 1), *((grid.name(column), len(unequal)) for column in grid.columns if unequal), *([("", len(equal))] if equal else [])]
    title = f"Comparison of arms at {grid.part}" if grid.part else "Comparison of arms"
    made = Table(title, ["arm", *(_header(grid, name) for _, name in places)], rows, groups=groups if grid.columns != [None] else [])
    made.caption = _caption(grid, set(names), bool(made.best))
    return fit(made.trimmed())


def size_table(grid: Grid) -> Table:
    """Return how large and how fast the models are, for every column."""
    rows = [
        [*model_entries(grid, row, column), *(COLUMNS[name].entry(grid, row, column) for name in SIZE_COLUMNS)]
        for row, column, _ in grid.models()
    ]
    caption = (
        "A chain's stages are joined by +. Activations: output values of matrix products and convolutions for one image. Inference: the "
        "fastest measurement of equal networks, as the median over batches ± half their interquartile range."
    )
    header = ["arm", grid.axis_name, *(_header(grid, name) for name in SIZE_COLUMNS)]
    return fit(Table("Size and speed", header, rows, caption, left=frozenset({0, 1})).trimmed())


def differences(grid: Grid, names: list[str] | None = None) -> Table | None:
    """Return the differences from the baseline; None if a main table of the columns ``names`` shows them."""
    return None if "baseline" in (names or usual(grid)) else of_all.differences(grid)


def check(names: list[str]) -> list[str]:
    """Return the names without repetitions.

    Raises:
        ConfigError: there is no such column.
    """
    if unknown := [name for name in names if name not in COLUMNS]:
        near = [match for name in unknown for match in closest(name.lower(), list(COLUMNS))]
        meant = f" (did you mean {' and '.join(near)}?)" if near else ""
        raise ConfigError(f"there is no column {', '.join(unknown)}{meant}; the columns are {', '.join(COLUMNS)}", "--columns")
    return list(dict.fromkeys(names))


def empty(grid: Grid, names: list[str]) -> list[str]:
    """Return those of ``names`` for which no row has a figure, so that the tables leave their columns out."""
    places = [(part, row, column) for part in grid.parts for row in part.rows for column in part.columns]
    return [name for name in names if all(COLUMNS[name].entry(*place).text == DASH for place in places)]


def narrow(grid: Grid) -> list[str]:
    """Return the columns that are shown however many columns the sweep has; epochs only if they differ."""
    texts = {_epochs(grid, row, column).text for row in grid.rows for column in grid.columns}
    return ["accuracy", "paper", "difference", *(["epochs"] if len(texts - {DASH}) > 1 else [])]


def usual(grid: Grid) -> list[str]:
    """Return the columns that are shown by default, as far as there is room for them; epochs only if they differ.

    A sweep of one column also shows costs, one of two columns only exact costs. With more columns, or with several beside a paper's
    numbers, the accuracies alone are wide enough.
    """
    accuracies = narrow(grid)
    steps = ["steps"] if "epochs" in accuracies else []
    printed = any(row.arm.published for row in grid.rows)
    if len(grid.columns) > (1 if printed else FEW_COLUMNS):
        return accuracies
    return [*accuracies, "baseline", "training_macs", *([] if len(grid.columns) > 1 else [*steps, "hours", "kwh", "co2e"])]


def _equal(grid: Grid, name: str) -> bool:
    """Whether every arm has the same figure in all columns of the sweep; False for accuracies and their differences."""
    if name in ("accuracy", "paper", "difference", "baseline"):
        return False
    return all(len({COLUMNS[name].entry(grid, row, column).text for column in grid.columns}) == 1 for row in grid.rows)


# -------------------------------------------------------------------------------------------------------------- entries


def _accuracy(grid: Grid, row: Row, column: Any) -> Entry:
    scores, cells = list(grid.scores(row, column).values()), row.columns[column]
    seeds = f"{len(scores)}" if len(scores) == len(cells) else f"{len(scores)} of {len(cells)}"
    if not scores:
        return _states_of(row, row.candidates(column))
    near = near_best(grid, column)
    best = row in near and len(near) < len(grid.ranking(column))  # where all arms are near best, none is set apart
    return Entry(f"{plus_minus(scores)} ({seeds})", best=best)


def _states_of(row: Row, cells: list[Cell]) -> Entry:
    if row.arm.not_runnable:
        return Entry("not runnable", NOTE)
    counts = Counter(cell.state for cell in cells)
    text = ", ".join(f"{state} ({n})" for state, n in counts.items())
    if set(counts) == {"done"}:
        return Entry("no accuracy", NOTE)  # a pretraining alone
    return Entry(text or DASH, BAD if {"failed", "unreadable"} & set(counts) else NOTE)


def _from_paper(grid: Grid, row: Row, column: Any) -> Entry:
    scores, paper = grid.scores(row, column), grid.published(row, column)
    return Entry(signed(mean(scores.values()) - paper)) if scores and paper is not None else Entry()


def _from_baseline(grid: Grid, row: Row, column: Any) -> Entry:
    return difference_entry(grid.against_baseline(row, column))


def _epochs(grid: Grid, row: Row, column: Any) -> Entry:
    stages = schedule.plan(row, column)
    return Entry(schedule.epochs(stages)) if stages else Entry()


def _steps(grid: Grid, row: Row, column: Any) -> Entry:
    """Return the optimiser steps of each stage."""
    done = row.finished(column)
    return Entry(" + ".join(f"{run.done['step']:,}" for _, run in done[0].stages)) if done else Entry()


def _training(grid: Grid, row: Row, column: Any) -> Entry:
    return training(row.finished(column))


def _spent(grid: Grid, row: Row, column: Any, name: str) -> Entry:
    """Return what one model cost, mean over its finished seeds; a dash if that was not recorded."""
    return figure(cost_per_model(row.columns[column]).get(name) or None)


def _size(grid: Grid, row: Row, column: Any, name: str, unit: float, training: bool = False) -> Entry:
    """Return a size of the last stage's network, or of every stage's network for ``training``."""
    done = row.finished(column)
    runs = [run for _, run in done[0].stages[0 if training else -1 :]] if done else []
    return figure(*(run.cost[name] / unit for run in runs))


def _images_per_s(grid: Grid, row: Row, column: Any) -> Entry:
    """Return the inference speed, ± half the interquartile range over batches."""
    if not (done := row.finished(column)):
        return Entry()
    value, spread = costs.images_per_s(grid, done[0])
    return figure(value, spread=None if spread is None else value * spread / 2)


COLUMNS = {
    "accuracy": Column("{metric}", _accuracy),
    "paper": Column("paper", published),
    "difference": Column("difference", _from_paper),
    "baseline": Column("against {baselines}", _from_baseline),
    "epochs": Column("epochs", _epochs),
    "steps": Column("steps", _steps),
    "training_macs": Column("PMACs of training", _training),
    "hours": Column("{hours}", partial(_spent, name="device_hours")),
    "kwh": Column("kWh", partial(_spent, name="energy_kwh")),
    "co2e": Column("kg CO2e", partial(_spent, name="co2e_kg")),
    "co2e_estimate": Column("kg CO2e estimate", partial(_spent, name="estimate_kg")),
    "money": Column("{money}", partial(_spent, name="money")),
    "params": Column("M parameters, inference", partial(_size, name="params_inference", unit=1e6)),
    "params_train": Column("M parameters, training", partial(_size, name="params_train", unit=1e6, training=True)),
    "activations": Column("M activations", partial(_size, name="activations_inference", unit=1e6)),
    "gmacs": Column("GMACs, training forward", partial(_size, name="macs_train_forward", unit=1e9, training=True)),
    "gmacs_inference": Column("GMACs, inference", partial(_size, name="macs_inference", unit=1e9)),
    "images_per_s": Column("images/s, inference", _images_per_s),
}


def _header(grid: Grid, name: str) -> str:
    words = {"metric": grid.measured.title, "baselines": grid.baselines(), "hours": grid.sweep.hours_name, "money": currency(grid.sweep)}
    return COLUMNS[name].header.format(**words)


def _caption(grid: Grid, names: set[str], any_best: bool) -> str:
    sweep, paper = grid.sweep, grid.sweep.facts["paper"]
    caption = f"{title(grid)}{tested(grid)} {weights_text(grid)}: mean ± standard deviation over the seeds, their number in brackets."
    caption += f" {LOWER_IS_BETTER}" if grid.measured.lower_is_better else ""
    caption += f" Bold: {BOLD}." if any_best else ""
    caption += f" Each uses the {listed(sweep.facts['select'])} chosen on held-out images." if sweep.facts["select"] else ""
    source = f" Numbers in italics are from {paper['table']} of “{paper['title']}”, not measured here." if paper else ""
    data_fields = ", ".join(_other_data(sweep))
    source += f" These runs use other images than the paper: the command line set {data_fields}." if paper and data_fields else ""
    source += " † quoted by the paper from elsewhere." if any(arm.quoted for arm in sweep.arms) else ""
    equal = sweep.facts["equal"]["all"]
    if equal:
        reference = next((grid.arm_name(arm) for arm in sweep.arms if arm.name == equal["reference"]), equal["reference"])
        caption += f" Every arm trains for the same {EQUAL[equal['quantity']]} as {reference}."
    spent = " Costs are per model, over all its stages" if names & TRAINING_COSTS and grid.models() else ""
    spent += "; training counts the multiply-adds of all steps, forward and backward" if spent and "training_macs" in names else ""
    doubt = costs.caveats(grid) if names & MEASURED_COSTS else ""
    spent = f"{spent}.{external_sources.not_counted(grid.sweep)}{doubt}" if spent else ""
    return caption + _trained_by(grid) + source + (_against(grid) if "baseline" in names else "") + spent


def _other_data(sweep: Sweep) -> list[str]:
    """Return the fields set on the command line that change which images are seen."""
    return [key for key in sweep.facts["overrides"] if re.search(r"(^|\.)data(\.(shards|source|images|labels|\w+_split)|$)", key)]


def _trained_by(grid: Grid) -> str:
    """Return a sentence on the objectives of the arms' stages, since a row's name is only what its author calls it.

    Empty if there are too many combinations of objectives, or if none is known.
    """
    rows: dict[str, list[str]] = {}
    for row in grid.rows:
        for cell in row.cells[:1]:
            stages = [[*active(run.run.objectives)] if run.run else [] for _, run in cell.stages]
            rows.setdefault(", then ".join(" + ".join(stage) or "(not known)" for stage in stages), []).append(grid.label(row))
    rows.pop("(not known)", None)
    texts = "; ".join(f"{' and '.join(names)}: {objectives}" for objectives, names in rows.items())
    return f" Objectives of {texts}." if 0 < len(rows) <= FEW_KINDS else ""


def _against(grid: Grid) -> str:
    """Return a sentence on the differences from the baseline, and on the seeds from which their intervals are computed."""
    gaps = [gap for row in grid.rows for column in grid.columns if (gap := grid.against_baseline(row, column))]
    if not gaps:
        return ""
    any_interval = any(gap.low is not None for gap in gaps)
    how = "; ".join(dict.fromkeys(text for column in grid.columns if (text := _kinds_of_interval(grid, column))))
    sentence = f" Against {grid.baselines()}: the difference{', with its 95 % confidence interval' if any_interval else ''} ({how})."
    return f"{sentence} {UNCORRECTED}" if any_interval else sentence


def _kinds_of_interval(grid: Grid, column: Any) -> str:
    """Return how the intervals of a column are computed; if not all alike, with the arms of each kind, and the column if there are more."""
    rows_by_kind: dict[str, list[str]] = {}
    for row in grid.rows:
        if gap := grid.against_baseline(row, column):
            rows_by_kind.setdefault(gap.how, []).append(grid.label(row))
    if len(rows_by_kind) < 2:
        return "".join(rows_by_kind)
    place = f"{grid.name(column)}, " if len(grid.columns) > 1 else ""
    return "; ".join(f"{place}{few(rows)}: {kind}" for kind, rows in rows_by_kind.items())


def tested(grid: Grid) -> str:
    """Return the number of test images and their set, in words.

    Empty if models are tested on several sets, or if the sweep's metric is that of a configured evaluator.
    """
    runs = [cell.last for row in grid.rows for cell in row.done if "data" in cell.last.job]
    sets = {(run.job["data"]["name"], 0 if grid.folds else run.job["data"]["test_images"]) for run in runs}
    if len(sets) != 1 or grid.metric[0] not in VAL_COUNTERPARTS:
        return ""
    name, count = sets.pop()
    return f" on the {counted(count, 'test image')} of {name}" if count else f" on {grid.folds} folds of {name}, one per seed,"


def title(grid: Grid) -> str:
    """Return the title of the metric, for the beginning of a sentence."""
    title = grid.measured.title
    return title[0].upper() + title[1:]
