"""What training sees, from the runs themselves: epochs, images with labels and without, and whether arms are equal in it."""

from __future__ import annotations

from math import ceil
from typing import Any

from vitssl.report.results.collect import Cell, RunFolder
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.words import counted, listed

Plan = tuple[tuple[float, float], ...]  # of each stage: epochs, and images seen in all
MOST_GROUPS = 4  # of arms that a sentence tells apart
EQUAL = 1.005  # times as much: equal but for what whole epochs leave
CLASSIFY = "classify"


def training_macs(cell: Cell) -> float:
    """The multiply-adds of all training steps of a finished model, of all its stages, forward and backward: an exact count."""
    return sum(run.cost["macs_train_step"] * run.done["step"] * run.run["optim"]["batch_size"] for _, run in cell.stages)


def plan(row: Row, column: Any) -> Plan | None:
    """What a model's stages are to see; None where a run's folder does not say (imported weights see nothing)."""
    cells = row.candidates(column)
    stages = [planned(run) for _, run in cells[0].stages if "imported" not in run.job] if cells else []
    return tuple(stage for stage in stages if stage) if stages and all(stages) else None


def planned(run: RunFolder) -> tuple[float, float] | None:
    """Epochs, and images seen in all, of which the last batch may be of one epoch more; None where its folder does not say."""
    if not run.run or "data" not in run.job:
        return None
    loop, images, batch = run.run["loop"], run.job["data"]["train_images"], run.run["optim"]["batch_size"]
    steps = ceil(round(loop["epochs"] * images / batch, 6))
    if loop["max_steps"] is not None and loop["max_steps"] < steps:
        return loop["max_steps"] * batch / images, loop["max_steps"] * batch
    return loop["epochs"], steps * batch


def epochs(stages: Plan) -> str:
    """Of a chain 20 + 20."""
    return " + ".join(f"{count:.3g}" if count < 100 else f"{count:,.0f}" for count, _ in stages)


def images_seen(grid: Grid) -> str:
    """How many images the arms see in training, each as often as it is seen; empty for a single arm, or where it is not known."""
    return _of_columns(grid, {column: _images_seen(grid, column) for column in grid.columns})


def _images_seen(grid: Grid, column: Any) -> str:
    totals: list[float] = []
    groups: dict[str, list[str]] = {}
    for row in grid.rows:
        if stages := plan(row, column):
            totals.append(sum(seen for _, seen in stages))
            groups.setdefault(f"{totals[-1]:,.0f} (epochs: {epochs(stages)})", []).append(grid.label(row))
    if len(totals) < 2:
        return ""
    if max(totals) <= EQUAL * min(totals):
        return f"Equal epochs: every arm sees {max(totals):,.0f} images in training."
    if len(groups) > MOST_GROUPS:
        return "Arms differ in how many images they see in training."
    return f"Images seen in training differ: {'; '.join(f'{text} for {listed(labels)}' for text, labels in groups.items())}."


def images_learned(grid: Grid) -> str:
    """How many images with a label and without one the arms learn from; empty where all have labels."""
    return _of_columns(grid, {column: _images_learned(grid, column) for column in grid.columns})


def _images_learned(grid: Grid, column: Any) -> str:
    groups: dict[tuple[int, int], list[str]] = {}
    for row in grid.rows:
        if counts := _learned(row, column):
            groups.setdefault(counts, []).append(grid.label(row))
    if not any(unlabelled for _, unlabelled in groups) or len(groups) > MOST_GROUPS:
        return ""
    told = [
        f"{counted(n, 'labelled image')}{f' and {m:,} without a label' * (m > 0)} for {listed(arms)}" for (n, m), arms in groups.items()
    ]
    return f"Learned from: {'; '.join(told)}."


def _learned(row: Row, column: Any) -> tuple[int, int] | None:
    """Labelled images and further ones of the first seed; None where stages are of several sets, or where nothing is classified."""
    runs = [run for _, run in cells[0].stages] if (cells := row.candidates(column)) else []
    if not runs or not all(run.run and "data" in run.job for run in runs):
        return None
    labelled = max((run.job["data"]["labelled_images"] for run in runs if run.run["objectives"].get(CLASSIFY) is not None), default=0)
    if not labelled or len({(run.job["data"]["sha256"], str(run.run["data"]["images"])) for run in runs}) > 1:
        return None
    return labelled, max(0, max(run.job["data"]["train_images"] for run in runs) - labelled)


def _of_columns(grid: Grid, texts: dict[Any, str]) -> str:
    """Once where it is the same in all columns."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return " ".join(f"{grid.name(column)}: {text}" for column, text in texts.items() if text)
