"""Results besides the sweep's metric: those of all evaluators, also by class, and other readings of the same runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitssl.config.evals import FEATURE_KINDS, KINDS, OWN_EVALS
from vitssl.config.metrics import BINS, METRICS, TOP_K, metric_of
from vitssl.report.results.best import chosen_by, chosen_metric, own_weights_text
from vitssl.report.results.collect import Reading, RunFolder
from vitssl.report.results.confusion import confusions
from vitssl.report.results.grid import Grid
from vitssl.report.results.stats import Difference, plus_minus
from vitssl.report.table import DASH, NOTE, Entry, Table, signed
from vitssl.report.tables.entries import LOWER_IS_BETTER, difference_entry, model_entries
from vitssl.words import few, listed

LOWEST = 10  # the number of classes that the table of classes lists for a model


def table(grid: Grid) -> Table | None:
    """Return every metric of every evaluator, by arm and stage; None if that would only repeat the main table."""
    rows, new = [], False
    for users, stage, runs in _distinct_stages(grid):
        for name in dict.fromkeys([*OWN_EVALS, *(name for run in runs for name in run.evals)]):
            if evaluated := [run for run in runs if run.metrics(name)]:
                by_seed = [informative_metrics(run, name, run.metrics(name)) for run in runs]
                by_metric = {metric: [scores[metric] for scores in by_seed if metric in scores] for metric in METRICS}
                new = new or name != "test" or any(by_metric[metric] for metric in METRICS.keys() - {"top1", "top5", "loss"})
                entries = [*users, Entry(stage), Entry(name), Entry(_fields(evaluated[0], name), NOTE)]
                rows.append([*entries, *(_entry(values, len(by_seed)) for values in by_metric.values())])
    if not new:
        return None
    header = ["arm", grid.axis_name, "stage", "evaluator", "fields", *(metric.title for metric in METRICS.values())]
    caption = (
        "After the last epoch of each stage (where the fields say weights best, at the epoch that held-out images choose), mean ± standard "
        "deviation over finished seeds. test, val and test_ema are the run's own "
        "classifier; so are selected and selected_val, on test and held-out images at the epoch that the held-out images choose; "
        "robustness is the same classifier on altered test images: in a random perspective, or without their centre; "
        f"{listed(FEATURE_KINDS)} are fitted to frozen features of the labelled training images, without augmentation. NLL: mean "
        f"cross-entropy; AUC: one class against the rest, averaged; ECE: {BINS} bins. {LOWER_IS_BETTER}"
    )
    return Table("Evaluations", header, rows, caption, left=frozenset(range(5))).trimmed()


def differences(grid: Grid) -> Table | None:
    """Return every arm minus its baseline in the metrics of the test split other than the sweep's; None if there are none."""
    rows, own = [], grid.own_evaluator
    for row, column, done in grid.models():
        if (base := grid.baseline(row)) is not None:
            scores = informative_metrics(done[0].last, own, done[0].last.metrics(own))
            keys = [key for key in METRICS if key in scores and (own, key) != grid.metric]
            gaps = {key: grid.gap(row, base, column, reading=(own, key)) for key in keys}
            rows.append([*model_entries(grid, row, column), *(_difference_entry(gaps.get(key)) for key in METRICS)])
    if not any(entry.text != DASH for row in rows for entry in row[2:]):
        return None
    caption = (
        "In brackets, with three seeds or more: 95 % confidence intervals over seeds, and over test images if the runs saved what each "
        "image adds to a metric, or over folds; not corrected for multiple comparisons. "
        f"On the test split {own_weights_text(grid)}. {LOWER_IS_BETTER}"
    )
    header = ["arm", grid.axis_name, *(metric.title for metric in METRICS.values())]
    return Table(f"Other metrics against {grid.baselines()}", header, rows, caption, left=frozenset({0, 1})).trimmed()


def _difference_entry(gap: Difference | None) -> Entry:
    """Return a difference as a cell, without its interval if that would leave out which images are tested on.

    An interval over folds covers that.
    """
    return difference_entry(gap) if gap is None or gap.num_images or gap.overlap else Entry(signed(gap.mean), parts=(gap.mean,))


def informative_metrics(run: RunFolder, name: str, metrics: dict[str, float]) -> dict[str, float]:
    """Return an evaluator's informative metrics: with five classes or fewer, the right one is always among the first five."""
    other_shards = (run.evals.get(name, {}).get("config") or {}).get("shards")  # their number of classes is not recorded
    if other_shards or run.job.get("data", {}).get("classes", TOP_K + 1) > TOP_K:
        return metrics
    return {key: value for key, value in metrics.items() if key != "top5"}


def _distinct_stages(grid: Grid) -> list[tuple[list[Entry], str, list[RunFolder]]]:
    """Return every stage's finished seeds once, with the arms and columns that use them.

    A pretraining that several arms share is listed once. If all seeds start from the same pretraining, it is a single run.
    """
    by_runs: dict[tuple[Path, ...], tuple[str, list[RunFolder], list[tuple[str, Any]]]] = {}
    for row, column, done in grid.models():
        for i, (stage, _) in enumerate(done[0].stages):
            runs = {cell.stages[i][1].path: cell.stages[i][1] for cell in done}
            by_runs.setdefault(tuple(runs), (stage, list(runs.values()), []))[2].append((grid.label(row), column))
    return [(_users(grid, users), stage, runs) for stage, runs, users in by_runs.values()]


def _users(grid: Grid, users: list[tuple[str, Any]]) -> list[Entry]:
    """Return the text columns of a table of stages: the arms that use a stage, and the columns."""
    columns = list(dict.fromkeys(str(column) for _, column in users))
    column_text = "all" if 1 < len(columns) == len(grid.columns) else ", ".join(columns)
    return [Entry(few(list(dict.fromkeys(label for label, _ in users)))), Entry(column_text if grid.axis else DASH)]


def _fields(run: RunFolder, name: str) -> str:
    """Return an evaluator's type and those of its fields that differ from the defaults."""
    if name not in run.evals:
        return DASH
    config = run.evals[name]["config"]
    defaults = KINDS[config["type"]]().defining()
    return ", ".join([config["type"], *(f"{key} {value}" for key, value in config.items() if value != defaults.get(key))])


def _entry(values: list[float], seeds: int) -> Entry:
    """Return mean and spread as a cell, with the number of seeds if some have no value."""
    if not values:
        return Entry()
    return Entry(plus_minus(values) + ("" if len(values) == seeds else f" ({len(values)} of {seeds})"))


def per_class(grid: Grid) -> Table:
    """Return recall, precision and F1 by class for every model, the lowest recall first; of many classes only LOWEST."""
    found = confusions(grid)
    rows = [
        [
            *model_entries(grid, c.row, c.column),
            Entry(DASH if c.evaluator == grid.own_evaluator else c.evaluator),
            Entry(c.classes[k]),
            Entry(f"{c.counts_KK[k].sum():,.0f}"),
            *(Entry(f"{100 * values_K[k]:.1f}") for values_K in (c.recall_K, c.precision_K, c.f1_K)),
        ]
        for c in found
        for k in np.argsort(c.recall_K, kind="stable")[:LOWEST]
    ]
    header = ["arm", grid.axis_name, "evaluator", "class", "images", "recall %", "precision %", "F1 %"]
    many = any(len(c.classes) > LOWEST for c in found)
    selected = f"The {LOWEST} classes with the lowest recall" if many else "All classes, from the lowest recall to the highest,"
    source = f"of the run's own classifier on the test split {own_weights_text(grid)}, unless another evaluator is named"
    caption = f"{selected} pooled over all finished seeds; {source}."
    return Table("Classes", header, rows, caption, left=frozenset({0, 1, 2, 3})).trimmed()


def readings(grid: Grid) -> Table | None:
    """Return other accuracies of the same runs: what choosing the epoch on the test set or on held-out images would give."""
    chosen = chosen_metric(grid)
    on_test: Reading = ("test_best", "top1")
    kinds: dict[Reading, str] = {
        ("test", chosen): f"{metric_of(chosen).name} after the last epoch",
        ("test_ema", "top1"): "top-1 of averaged weights",
        ("selected", chosen): f"{metric_of(chosen).name} at the best validation epoch{chosen_by(grid)}",
        on_test: "best top-1 on the TEST set",
    }
    if grid.own_evaluator != "selected":
        del kinds["test", chosen]
    elif chosen == grid.metric[1]:
        del kinds["selected", chosen]  # the main table shows it
    kinds = {kind: name for kind, name in kinds.items() if any(grid.scores(r, c, kind) for r in grid.rows for c in grid.columns)}
    if all(grid.scores(r, c, on_test) == grid.scores(r, c, ("test", "top1")) for r in grid.rows for c in grid.columns):
        kinds.pop(on_test, None)  # there was a single evaluation
    if not kinds:
        return None
    rows = []
    for row in (r for r in grid.rows if r.done):
        scores = [list(grid.scores(row, column, kind).values()) for column in grid.columns for kind in kinds]
        rows.append([Entry(grid.label(row)), *(Entry(plus_minus(s) if s else DASH) for s in scores)])
    groups = [("", 1), *((grid.name(c) or "accuracy", len(kinds)) for c in grid.columns)]
    caption = (
        "“Best top-1 on the TEST set” chooses the epoch on the test images themselves, which flatters every arm; no other number here "
        "does so."
    )
    return Table("Other readings of the same runs", ["arm", *list(kinds.values()) * len(grid.columns)], rows, caption, groups)
