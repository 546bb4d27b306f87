"""What training sees according to the runs: epochs, images with and without labels, and whether these are equal for all arms.

Terms:
    images seen: the images of all training steps; one that is seen in every epoch counts once per epoch.
    plan: the epochs and the images seen of each stage, as configured, so that they are known before training ends.

Example: an arm pretrains for 20 epochs and fine-tunes for 10, on 1,000 images in batches of 100. Its plan is ((20, 20000), (10, 10000)),
and the report shows ``20 + 10`` epochs and 30,000 images seen.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vitssl.config import labelled_rows, total_steps
from vitssl.report.results.collect import Cell, RunFolder
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row, finished
from vitssl.words import counted, few, listed

Plan = tuple[tuple[float, float], ...]  # for each stage its epochs, and the images seen in all of them
MOST_GROUPS = 4  # the most groups of arms that a sentence tells apart
EQUAL = 1.005  # counts whose ratio is smaller are equal, but for the rounding to whole epochs
CLASSIFY = "classify"


def training_macs(cell: Cell) -> float:
    """Return the exact multiply-adds of all training steps of a finished model: all stages, forward and backward."""
    return sum(run.cost["macs_train_step"] * run.done["step"] * run.config.optim.batch_size for _, run in cell.stages)


def plan(row: Row, column: Any) -> Plan | None:
    """Return what the stages of a model are to see, except imported weights, which see nothing; None if a run's folder does not say."""
    cells = row.candidates(column)
    stages = [planned(run) for _, run in cells[0].stages if "imported" not in run.job] if cells else []
    return tuple(stage for stage in stages if stage) if stages and all(stages) else None


def planned(run: RunFolder) -> tuple[float, float] | None:
    """Return the epochs of a run and all images seen, of which the last batch may reach into another epoch; None if not known."""
    if not run.run or "data" not in run.job:
        return None
    images = run.job["data"]["train_images"]
    seen = total_steps(run.run, images) * run.run.optim.batch_size
    return min(run.run.loop.epochs, seen / images), seen


def epochs(stages: Plan) -> str:
    """Format the epochs of the stages, which are joined by + for a chain: ``20 + 20``."""
    return " + ".join(f"{count:.3g}" if count < 100 else f"{count:,.0f}" for count, _ in stages)


def images_seen(grid: Grid) -> str:
    """Return a sentence on how many images the arms see in training; empty for a single arm, or if that is not known."""
    return _of_columns(grid, {column: _images_seen(grid, column) for column in grid.columns})


def _images_seen(grid: Grid, column: Any) -> str:
    plans = {row: stages for row in grid.rows if (stages := plan(row, column))}
    totals = [sum(seen for _, seen in stages) for stages in plans.values()]
    groups: dict[str, list[str]] = {}
    for (row, stages), total in zip(plans.items(), totals, strict=True):
        groups.setdefault(f"{total:,.0f} (epochs: {epochs(stages)})", []).append(grid.label(row))
    if len(totals) < 2:
        return ""
    planned_for = _planned_for(grid, plans)
    if max(totals) <= EQUAL * min(totals):
        return f"Equal epochs: every arm sees {max(totals):,.0f} images in training{planned_for}."
    if len(groups) > MOST_GROUPS:
        return f"Arms differ in how many images they see in training{planned_for}."
    return f"Images seen in training differ: {'; '.join(f'{text} for {listed(labels)}' for text, labels in groups.items())}{planned_for}."


def _planned_for(grid: Grid, rows: Collection[Row]) -> str:
    """Return the words, in parentheses, for which of the rows this is only planned: those without a finished model; empty without any."""
    names = [grid.label(row) for row in rows if not any(finished(row.candidates(column)) for column in row.columns)]
    if not names:
        return ""
    return f" (planned for {few(names)}, not finished)" if len(names) < len(rows) else " (planned; none has finished)"


def images_learned(grid: Grid) -> str:
    """Return a sentence on how many images with and without labels the arms learn from; empty if all images have labels."""
    return _of_columns(grid, {column: _images_learned(grid, column) for column in grid.columns})


def _images_learned(grid: Grid, column: Any) -> str:
    rows = {row: counts for row in grid.rows if (counts := _learned(row, column))}
    groups: dict[tuple[int, int], list[str]] = {}
    for row, counts in rows.items():
        groups.setdefault(counts, []).append(grid.label(row))
    if not any(unlabelled for _, unlabelled in groups) or len(groups) > MOST_GROUPS:
        return ""
    texts = [
        f"{counted(n, 'labelled image')}{f' and {m:,} without a label' * (m > 0)} for {listed(arms)}" for (n, m), arms in groups.items()
    ]
    return f"Learned from: {'; '.join(texts)}{_planned_for(grid, rows)}."


def _learned(row: Row, column: Any) -> tuple[int, int] | None:
    """Return how many images with labels, and how many others, the first seed of a row learns from.

    None if it classifies nothing, if its stages use several parts of one set, or another set with labels, which no stage need read.
    """
    runs = [run for _, run in cells[0].stages] if (cells := row.candidates(column)) else []
    if not runs or not all(run.run and "data" in run.job for run in runs):
        return None
    labelled = max((run.job["data"]["labelled_images"] for run in runs if run.config.objectives.classify is not None), default=0)
    by_set: dict[str, list[RunFolder]] = {}
    for run in runs:
        by_set.setdefault(run.job["data"]["sha256"], []).append(run)
    if not labelled or any(len({str(run.config.data.images) for run in of_set}) > 1 for of_set in by_set.values()):
        return None
    if len(by_set) > 1 and sum(any(run.job["data"]["classes"] for run in of_set) for of_set in by_set.values()) > 1:
        return None
    images = sum(max(run.job["data"]["train_images"] for run in of_set) for of_set in by_set.values())
    return labelled, max(0, images - labelled)


def labels_shown(grid: Grid) -> str:
    """Return a sentence on how often training shows each labelled image.

    Empty if all images have labels, or if all arms show these about equally often.
    """
    return _of_columns(grid, {column: _labels_shown(grid, column) if _images_learned(grid, column) else "" for column in grid.columns})


def _labels_shown(grid: Grid, column: Any) -> str:
    times = {row: views for row in grid.rows if (views := label_views(row, column)) is not None}
    groups: dict[str, list[str]] = {}
    for row, views in times.items():
        groups.setdefault(counted(round(views), "time") if views >= 1 else f"{views:.1g} times", []).append(grid.label(row))
    if not times or len(groups) > MOST_GROUPS or max(times.values()) <= EQUAL * min(times.values()):
        return ""
    shown = ", ".join(f"{text} to {listed(arms)}" for text, arms in groups.items())
    return f"To learn to classify, each labelled image is shown {shown}{_planned_for(grid, times)}."


def label_views(row: Row, column: Any) -> float | None:
    """Return how often the stages of a model that classify see each labelled image, on average.

    Where part of the images have labels, batches hold that part of them, or `config.labelled_rows` if these are more.
    None if a run's folder does not say it, or if nothing classifies.
    """
    runs = [run for _, run in cells[0].stages if run.run and run.run.objectives.classify] if (cells := row.candidates(column)) else []
    plans = [stage for run in runs if (stage := planned(run)) is not None]
    if not runs or len(plans) < len(runs) or not all(run.job["data"]["labelled_images"] for run in runs):
        return None
    times = 0.0
    for run, (_, seen) in zip(runs, plans, strict=True):
        facts = run.job["data"]
        part = max(facts["labelled_images"] / facts["train_images"], (labelled_rows(run.config) or 0) / run.config.optim.batch_size)
        times += seen * part / facts["labelled_images"]
    return times


def _of_columns(grid: Grid, texts: dict[Any, str]) -> str:
    """Return the text of every column, or just one text if all columns have the same."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return " ".join(f"{grid.name(column)}: {text}" for column, text in texts.items() if text)
