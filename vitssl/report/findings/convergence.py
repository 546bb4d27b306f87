"""Whether training ended too early to compare arms: accuracy at chance or still rising, or labels that were not learned."""

from __future__ import annotations

from math import log
from statistics import mean
from typing import Any

import numpy as np

from vitssl.report.results import saved_files
from vitssl.report.results.collect import Cell
from vitssl.report.results.folds import overlap_of
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.schedule import CLASSIFY
from vitssl.report.results.stats import difference
from vitssl.run_folder import predictions_of
from vitssl.words import few

LEAST = 1.0  # points over the end of training that are worth a sentence
END = (0.5, 0.9)  # of a training: between these is the evaluation that its last one is compared with, the latest such
UNLEARNED = 0.6  # of the loss by chance; mixed and smoothed labels leave less than that where training was long


def sentence(grid: Grid) -> str:
    """Return a sentence on what speaks against comparing the arms now; empty if nothing does."""
    checks = {
        f"{grid.measured.name} is not significantly above chance": _at_chance,
        "the classification loss ended high": _unlearned,
        f"{grid.measured.name} was still rising at the end of training": _rise,
    }
    objections = []
    for words, check in checks.items():
        models = {grid.model_name(row, column): text for row, column, done in grid.models() if (text := check(grid, row, column, done))}
        if models:
            objections.append(f"{words}: {few([f'{model} ({text})' for model, text in models.items()])}")
    text = "; ".join(objections)
    return f"{text[0].upper()}{text[1:]}. Longer training may change the ranking." if text else ""


def _at_chance(grid: Grid, row: Row, column: Any, done: list[Cell]) -> str:
    """Return a model's mean and that of chance; empty if the mean is significantly above it, as far as seeds and test images tell."""
    chance = _chance(grid, done)
    if chance is None:
        return ""
    gap = grid.above(row, column, chance)
    if gap is None or (gap.mean > 0 and (gap.low is None or gap.low > 0)):
        return ""
    return f"{chance + gap.mean:.2f} %, chance {chance:.2f} %"


def _chance(grid: Grid, cells: list[Cell]) -> float | None:
    """Return the metric by chance in %; for top-1 it is the share of the most frequent class. None if it is unknown or does not exist."""
    evaluator, metric = grid.metric
    if metric == "auc":
        return 50.0
    if metric == "balanced_accuracy":
        classes = {cell.last.job["data"]["classes"] for cell in cells if "data" in cell.last.job} - {0}
        return 100 / classes.pop() if len(classes) == 1 else None
    files = [predictions_of(cell.last.path, evaluator) for cell in cells]
    if metric != "top1" or not all(path.is_file() for path in files):
        return None
    labels = [saved_files.predictions(path).labels_N for path in files]
    return mean(100 * float(np.bincount(labels_N).max()) / len(labels_N) for labels_N in labels)


def _unlearned(grid: Grid, row: Row, column: Any, done: list[Cell]) -> str:
    """Return the final classification loss and that of chance, both summed over heads, if the loss ended high; otherwise empty.

    It is empty for a probe, whose network is frozen, and where held-out images chose an earlier epoch.
    """
    if _chose_earlier(grid, done):
        return ""
    runs = [cell.last for cell in done if cell.last.job.get("data", {}).get("classes") and not cell.last.cut_log]
    logged = [[event["terms"][CLASSIFY] for event in run.events_of("train") if CLASSIFY in event["terms"]] for run in runs]
    ends = [losses[-1] for losses in logged if losses]
    classify = runs[0].config.objectives.classify if ends else None
    if classify is None or any(run.config.backbone.frozen for run in runs):
        return ""
    heads = 1 + len(classify.extra_heads)
    chance = heads * log(runs[0].job["data"]["classes"])
    return f"{mean(ends):.2f}, chance {chance:.2f}" if mean(ends) >= UNLEARNED * chance else ""


def _rise(grid: Grid, row: Row, column: Any, done: list[Cell]) -> str:
    """Return by how many points the metric still rose, and over which last share of training; empty if it did not rise significantly."""
    done = [cell for cell in done if not cell.last.cut_log]
    ends = [end for cell in done if (end := _end(grid, cell))]
    if not ends or _chose_earlier(grid, done) or grid.measured.unit != "%":
        return ""
    last, before, shares = zip(*ends, strict=True)
    gap = difference(dict(enumerate(last)), dict(enumerate(before)), overlap_of(done))
    assert gap is not None  # both have scores
    return f"by {gap.mean:.2f} points over the last {100 * max(shares):.0f} %" if gap.mean >= LEAST and not gap.open else ""


def _chose_earlier(grid: Grid, done: list[Cell]) -> bool:
    """Whether the sweep compares epochs that held-out images choose, and these are not the last ones: more epochs would not be chosen."""
    if grid.metric[0] != "selected":
        return False
    trained = [cell.last.done for cell in done if cell.last.done["epochs"] > 0]
    chosen = [(facts.get("selected") or {}).get("epoch", facts["epochs"]) / facts["epochs"] for facts in trained]
    return bool(chosen) and mean(chosen) < END[1]


def _end(grid: Grid, cell: Cell) -> tuple[float, float, float] | None:
    """Return (last value, earlier value, share of training between them) of the last stage's evaluations; None without an earlier one."""
    evaluator, metric = grid.metric
    evaluator = "test" if evaluator == "selected" else evaluator  # of which there is one value
    values = {e["step"]: value for e in cell.last.events_of("eval") if (value := (e.get(evaluator) or {}).get(metric)) is not None}
    last = max(values, default=0)
    before = [step for step in values if END[0] * last <= step <= END[1] * last]
    return (values[last], values[max(before)], 1 - max(before) / last) if before else None
