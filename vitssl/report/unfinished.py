"""Whether training ended too early for arms to be compared: accuracy at chance, or that still rose; images that were not learned."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from vitssl.report import kept
from vitssl.report.collect import Cell
from vitssl.report.grid import Grid, overlap_of
from vitssl.report.rows import Row, finished
from vitssl.report.stats import difference
from vitssl.report.unlabelled import CLASSIFY
from vitssl.words import counted, listed

LEAST = 1.0  # points over the end of training that are worth a sentence
END = (0.5, 0.9)  # of a training: between these is the evaluation that its last one is compared with, the latest such
UNLEARNED = 0.6  # of the loss by chance; mixed and smoothed labels leave less than that where training was long
MOST_NAMED = 4  # models


def sentence(grid: Grid) -> str:
    """What speaks against a comparison; empty where nothing does."""
    losses = unlearned(grid)
    rises = _models(grid, _rise, lambda found: found[0] >= LEAST) if grid.measured.unit == "%" else {}
    said = []
    if level := _models(grid, _not_above, bool):
        chance = " or ".join(dict.fromkeys(f"{found.chance:.2f}" for found in level.values()))
        which = _listed(level, lambda found: f"{found.mean:.2f}")
        what = "naming the most frequent class always" if grid.metric[1] == "top1" else "chance"
        said.append(f"{grid.measured.name} is not told from {what}, {chance} %: {which}")
    if losses:
        chance = " or ".join(dict.fromkeys(f"{loss:.2f}" for _, loss in losses.values()))
        which = _listed(losses, lambda found: f"{found[0]:.2f}")
        said.append(f"at the end of training classify's loss was {which}, where chance has {chance}")
    if rises:
        which = _listed(rises, lambda found: f"by {found[0]:.2f} points over the last {100 * found[1]:.0f} %")
        said.append(f"{'' if said else 'at the end of training '}{grid.measured.name} still rose, {which}")
    if said:
        text = "; ".join(said)
        return f"{text[:1].upper()}{text[1:]}: longer training may change the order."
    return f"Whether {grid.measured.name} still rose is not known: runs evaluated it once." if _once(grid) else ""


def unlearned(grid: Grid) -> dict[str, tuple[float, float]]:
    """The models whose labelled images were hardly learned: loss at the end, and that of chance."""
    return _models(grid, _loss, lambda found: found[0] >= UNLEARNED * found[1])


def _models(grid: Grid, find: Callable[..., Any], matters: Callable[[Any], bool]) -> dict[str, Any]:
    """What is found of each model, where it matters."""
    found = {}
    for row in grid.rows:
        for column in grid.columns:
            told = find(grid, row, column)
            if told is not None and matters(told):
                found[f"{grid.label(row)}{f' on {name}' if (name := grid.name(column)) else ''}"] = told
    return found


def _listed(found: dict[str, Any], shown: Callable[[Any], str]) -> str:
    if len(found) > MOST_NAMED:
        return f"{shown(max(found.values()))} at most ({counted(len(found), 'model')})"
    return listed(f"{shown(value)} ({label})" for label, value in found.items())


class Level(NamedTuple):
    mean: float
    chance: float


def _not_above(grid: Grid, row: Row, column: Any) -> Level | None:
    """The mean of a model that is no better, as far as its seeds tell, than what needs no network; None of a better one."""
    scores, chance = list(grid.scores(row, column).values()), _chance(grid, finished(row.columns.get(column, [])))
    if not scores or chance is None:
        return None
    overlap = overlap_of(finished(row.columns.get(column, [])))
    gap = difference(dict(enumerate(scores)), dict.fromkeys(range(len(scores)), chance), overlap)
    found = Level(mean(scores), chance)
    return found if gap is not None and (gap.mean <= 0 or (gap.low is not None and gap.low <= 0)) else None


def _chance(grid: Grid, cells: list[Cell]) -> float | None:
    """In %; of top-1 the share of the most frequent class. None where that is not known, and of metrics that have none."""
    evaluator, metric = grid.metric
    if metric == "auc":
        return 50.0
    if metric == "balanced_accuracy":
        classes = {cell.last.job["data"]["classes"] for cell in cells if "data" in cell.last.job}
        return 100 / classes.pop() if len(classes) == 1 else None
    files = [cell.last.path / f"predictions-{evaluator}.npz" for cell in cells]
    if metric != "top1" or not cells or not all(path.is_file() for path in files):
        return None
    labels = [kept.predictions(path).labels_N for path in files]
    return mean(100 * float(np.bincount(labels_N).max()) / len(labels_N) for labels_N in labels)


def _loss(grid: Grid, row: Row, column: Any) -> tuple[float, float] | None:
    """Of the labels at the last stage's end, mean over the finished seeds, and that of chance, which is a sum over heads as it is; None of
    a probe, whose network is frozen."""
    runs = [cell.last for cell in finished(row.columns.get(column, [])) if "data" in cell.last.job]
    ends = [terms[CLASSIFY] for run in runs if (logged := run.of("train")) and CLASSIFY in (terms := logged[-1]["terms"])]
    if not ends or any(run.run["backbone"]["frozen"] for run in runs):
        return None
    heads = 1 + len(runs[0].run["objectives"][CLASSIFY].get("extra_heads") or [])
    return mean(ends), heads * log(runs[0].job["data"]["classes"])


def _rise(grid: Grid, row: Row, column: Any) -> tuple[float, float] | None:
    """Mean over the finished seeds, and the share of the last stage's training that it is of; None where it may be chance."""
    cells = finished(row.columns.get(column, []))
    ends = [end for cell in cells if (end := _end(grid, cell))]
    gap = difference(*(dict(enumerate(values)) for values in list(zip(*ends, strict=True))[:2]), overlap_of(cells)) if ends else None
    return (gap.mean, max(share for *_, share in ends)) if gap and not gap.open else None


def _end(grid: Grid, cell: Cell) -> tuple[float, float, float] | None:
    """The last evaluation, an earlier one, and the share of training between them."""
    values = _evaluated(grid, cell)
    last = max(values, default=0)
    before = [step for step in values if END[0] * last <= step <= END[1] * last]
    return (values[last], values[max(before)], 1 - max(before) / last) if before else None


def _evaluated(grid: Grid, cell: Cell) -> dict[int, float]:
    """The metric of the last stage by step."""
    evaluator, metric = grid.metric
    return {e["step"]: value for e in cell.last.of("eval") if (value := (e.get(evaluator) or {}).get(metric)) is not None}


def _once(grid: Grid) -> bool:
    """Was every finished model evaluated a single time?"""
    counts = {len(_evaluated(grid, cell)) for row in grid.rows for cell in row.done}
    return counts == {1}
