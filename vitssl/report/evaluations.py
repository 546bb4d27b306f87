"""Results of evaluators besides the sweep's metric: their table, and confusion between classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitssl.config.evals import KINDS, METRICS
from vitssl.report.collect import Cell, RunFolder
from vitssl.report.grid import Grid
from vitssl.report.tables import DASH, LOWER_IS_BETTER, NOTE, Entry, Table, plus_minus, which

MOST_CLASSES, NAMED_CLASSES, MOST_PANELS = 100, 30, 6  # in a confusion matrix; with their names beside it; panels in a figure


def table(grid: Grid) -> Table | None:
    """Every metric of every evaluator, by arm and stage; None where it would only repeat the main table."""
    lines = [
        ([*which(grid, row, column), Entry(stage), Entry(name), Entry(_fields(having[0], name), NOTE)], [run.metrics(name) for run in runs])
        for row, column, done in grid.models()
        for stage, runs in _stages(done).items()
        for name in dict.fromkeys(["test", "val", "test_ema", *(name for run in runs for name in run.evals)])
        if (having := [run for run in runs if run.metrics(name)])
    ]
    if not any(set().union(*seeds) & (METRICS.keys() - {"top1", "top5", "loss"}) or line[3].text != "test" for line, seeds in lines):
        return None
    rows = [
        [*line, *(_entry([scores[metric] for scores in seeds if metric in scores], len(seeds)) for metric in METRICS)]
        for line, seeds in lines
    ]
    header = ["arm", grid.axis or "", "stage", "evaluator", "fields", *(metric.title for metric in METRICS.values())]
    caption = (
        "After the last epoch of each stage, mean ± standard deviation over finished seeds. test, val and test_ema are the run's own "
        "classifier; knn and linear look at frozen features of the labelled training images, without augmentation. "
        f"NLL: mean cross-entropy; AUC: one class against the rest, averaged; ECE: 15 bins. {LOWER_IS_BETTER}"
    )
    return Table("Evaluations", header, rows, caption, left=frozenset(range(5))).trimmed()


def _stages(done: list[Cell]) -> dict[str, list[RunFolder]]:
    """The runs of the finished seeds, by stage name."""
    return {name: [cell.stages[i][1] for cell in done] for i, (name, _) in enumerate(done[0].stages)}


def _fields(run: RunFolder, name: str) -> str:
    """An evaluator's type, and its fields that are not the defaults."""
    if name not in run.evals:
        return DASH
    config = run.evals[name]["config"]
    defaults = KINDS[config["type"]]().defining()
    return ", ".join([config["type"], *(f"{key} {value}" for key, value in config.items() if value != defaults.get(key))])


def _entry(values: list[float], seeds: int) -> Entry:
    """Mean and spread, and of how many seeds where some have no such value."""
    if not values:
        return Entry()
    return Entry(plus_minus(values) + ("" if len(values) == seeds else f" ({len(values)} of {seeds})"))


# ----------------------------------------------------------------------------------------------------------- confusion


@dataclass
class Confusion:
    """The confusion matrix of one arm in one column.

    Attributes:
        classes: their names.
        counts_KK: images by class (row) and predicted class (column), mean over seeds.
    """

    classes: list[str]
    counts_KK: np.ndarray

    @property
    def recall_K(self) -> np.ndarray:
        return self.counts_KK.diagonal() / np.maximum(self.counts_KK.sum(1), 1e-9)

    @property
    def precision_K(self) -> np.ndarray:
        return self.counts_KK.diagonal() / np.maximum(self.counts_KK.sum(0), 1e-9)

    @property
    def f1_K(self) -> np.ndarray:
        return 2 * self.counts_KK.diagonal() / np.maximum(self.counts_KK.sum(0) + self.counts_KK.sum(1), 1e-9)


def confusion(done: list[Cell], evaluator: str) -> Confusion | None:
    """The mean over finished seeds, from the predictions that their runs saved; None where one saved none."""
    paths = [cell.last.path / f"predictions-{evaluator}.npz" for cell in done]
    if not paths or not all(path.is_file() for path in paths):
        return None
    read = [_counts(path) for path in paths]
    return Confusion(read[0][0], np.mean([counts_KK for _, counts_KK in read], axis=0))


@cache
def _counts(path: Path) -> tuple[list[str], np.ndarray]:
    with np.load(path) as saved:
        classes, labels_N, predicted_N = saved["classes"].tolist(), saved["labels"], saved["predicted"]
    counts_KK = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(counts_KK, (labels_N, predicted_N), 1)
    return classes, counts_KK


def _matrices(grid: Grid) -> list[tuple[list[Entry], str, Confusion]]:
    """For every model and classifier's evaluator: the text columns of a table (arm, column, evaluator), a title, and its confusion."""
    matrices = []
    for row, column, done in grid.models():
        place = f"{grid.label(row)}, {grid.name(column)}" if grid.axis else grid.label(row)
        for name in ("test", *done[0].last.evals):
            if (matrix := confusion(done, name)) is not None:
                other = Entry(DASH if name == "test" else name)
                matrices.append(([*which(grid, row, column), other], place if name == "test" else f"{place}: {name}", matrix))
    return matrices


def per_class(grid: Grid) -> Table | None:
    """Recall, precision and F1 of every class; of many classes, those of lowest recall."""
    matrices = _matrices(grid)
    if not matrices:
        return None
    rows = [
        [*names, Entry(c.classes[k]), Entry(f"{c.counts_KK[k].sum():,.0f}"),
         *(Entry(f"{100 * values_K[k]:.1f}") for values_K in (c.recall_K, c.precision_K, c.f1_K))]
        for names, _, c in matrices
        for k in (range(len(c.classes)) if len(c.classes) <= NAMED_CLASSES else np.argsort(c.recall_K, kind="stable")[:10])
    ]  # fmt: skip
    header = ["arm", grid.axis or "", "evaluator", "class", "images", "recall %", "precision %", "F1 %"]
    many = any(len(c.classes) > NAMED_CLASSES for *_, c in matrices)
    selection = f" Of more than {NAMED_CLASSES} classes, the ten of lowest recall." if many else ""
    caption = f"After the last epoch, over all finished seeds; on the test split, or of the evaluator that is named.{selection}"
    return Table("Classes", header, rows, caption, left=frozenset({0, 1, 2, 3})).trimmed()


def confusion_plot(grid: Grid) -> tuple[str, Figure] | None:
    """Matrices of the first arms, as shares of each class; None for very many classes."""
    matrices = [(title, c) for _, title, c in _matrices(grid) if len(c.classes) <= MOST_CLASSES][:MOST_PANELS]
    if not matrices:
        return None
    across = min(len(matrices), 3)
    figure = Figure(figsize=(4.3 * across, 3.9 * -(-len(matrices) // across)), layout="constrained")
    axes = figure.subplots(-(-len(matrices) // across), across, squeeze=False).reshape(-1)
    for axis, (title, c) in zip(axes, matrices, strict=False):
        _draw(axis, c, title)
    for spare in axes[len(matrices) :]:
        spare.set_visible(False)
    return "Confusion: the share of each class's images (row) that is taken for each class (column), mean over seeds, in %.", figure


def _draw(axis: Axes, c: Confusion, title: str) -> None:
    K = len(c.classes)
    share_KK = 100 * c.counts_KK / np.maximum(c.counts_KK.sum(1, keepdims=True), 1e-9)
    axis.imshow(share_KK, cmap="Blues", vmin=0, vmax=100)
    axis.grid(False)
    axis.set(title=title, xlabel="predicted", ylabel="class")
    if K > NAMED_CLASSES:
        return
    axis.set_xticks(range(K), c.classes, rotation=90, fontsize=7)
    axis.set_yticks(range(K), c.classes, fontsize=7)
    if K <= 15:
        for (i, j), share in np.ndenumerate(share_KK):
            if share >= 0.5:
                axis.text(j, i, f"{share:.0f}", ha="center", va="center", fontsize=6, color="white" if share > 60 else "black")
