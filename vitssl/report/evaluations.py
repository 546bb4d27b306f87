"""Results of evaluators besides the sweep's metric: their table, and confusion between classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from vitssl.config.evals import FIRST, KINDS, METRICS, OF_FEATURES
from vitssl.report import kept
from vitssl.report.collect import Cell, RunFolder
from vitssl.report.grid import Grid
from vitssl.report.stats import Difference
from vitssl.report.style import COLOURS, INK, WHITE, Plot, panels
from vitssl.report.table import DASH, NOTE, Entry, Table, signed
from vitssl.report.tables import LOWER_IS_BETTER, plus_minus, versus, which
from vitssl.words import few, listed

MOST_CLASSES, NAMED_CLASSES, MOST_PANELS = 100, 30, 6  # in a confusion matrix; with their names beside it; panels in a figure
MOST_COUNTED = 10_000  # classes that are counted against one another: 800 MB
SHORT, LOWEST = 3, 10  # letters of names that stand upright below a matrix; classes of a model that a table lists


def table(grid: Grid) -> Table | None:
    """Every metric of every evaluator, by arm and stage; None where it would only repeat the main table."""
    rows, new = [], False
    for users, stage, runs in _once(grid):
        for name in dict.fromkeys(["test", "val", "test_ema", *(name for run in runs for name in run.evals)]):
            if having := [run for run in runs if run.metrics(name)]:
                seeds = [telling(run, name, run.metrics(name)) for run in runs]
                found = {metric: [scores[metric] for scores in seeds if metric in scores] for metric in METRICS}
                new = new or name != "test" or any(found[metric] for metric in METRICS.keys() - {"top1", "top5", "loss"})
                named = [*users, Entry(stage), Entry(name), Entry(_fields(having[0], name), NOTE)]
                rows.append([*named, *(_entry(values, len(seeds)) for values in found.values())])
    if not new:
        return None
    header = ["arm", grid.axis_name, "stage", "evaluator", "fields", *(metric.title for metric in METRICS.values())]
    caption = (
        "After the last epoch of each stage, mean ± standard deviation over finished seeds. test, val and test_ema are the run's own "
        f"classifier; {listed(OF_FEATURES)} are fitted to frozen features of the labelled training images, without augmentation. NLL: mean "
        f"cross-entropy; AUC: one class against the rest, averaged; ECE: 15 bins. {LOWER_IS_BETTER}"
    )
    return Table("Evaluations", header, rows, caption, left=frozenset(range(5))).trimmed()


def differences(grid: Grid) -> Table | None:
    """Every arm minus its baseline in the metrics of the test split besides the sweep's; None where there are no others."""
    rows = []
    for row, column, done in grid.models():
        if (base := grid.baseline(row)) is not None:
            told = telling(done[0].last, "test", done[0].last.metrics("test"))
            known = [key for key in METRICS if key in told and ("test", key) != grid.metric]
            gaps = {key: grid.gap(row, base, column, of=("test", key)) for key in known}
            rows.append([*which(grid, row, column), *(_versus(gaps.get(key)) for key in METRICS)])
    if not any(entry.text != DASH for row in rows for entry in row[2:]):
        return None
    caption = (
        "From three seeds on with 95 % confidence intervals, over seeds and test images where runs kept each image's part in a metric, or "
        f"over folds; not corrected for multiple comparisons. {LOWER_IS_BETTER}"
    )
    header = ["arm", grid.axis_name, *(metric.title for metric in METRICS.values())]
    return Table(f"Other metrics against {grid.baselines()}", header, rows, caption, left=frozenset({0, 1})).trimmed()


def _versus(gap: Difference | None) -> Entry:
    """Without an interval that would leave out which images are tested on; over folds it covers that."""
    return versus(gap) if gap is None or gap.images or gap.overlap else Entry(signed(gap.mean), parts=(gap.mean,))


def telling(run: RunFolder, name: str, metrics: dict[str, float]) -> dict[str, float]:
    """An evaluator's metrics that say something: of five classes or fewer the right one is always among the first five."""
    of_others = (run.evals.get(name, {}).get("config") or {}).get("shards")  # of classes that are not told
    if of_others or run.job.get("data", {}).get("classes", FIRST + 1) > FIRST:
        return metrics
    return {key: value for key, value in metrics.items() if key != "top5"}


def _once(grid: Grid) -> list[tuple[list[Entry], str, list[RunFolder]]]:
    """Every stage's finished seeds with the arms and columns that use them: a pretraining that several share is listed once."""
    found: dict[tuple[Path, ...], tuple[str, list[RunFolder], list[tuple[str, Any]]]] = {}
    for row, column, done in grid.models():
        for i, (stage, _) in enumerate(done[0].stages):
            runs = [cell.stages[i][1] for cell in done]
            found.setdefault(tuple(run.path for run in runs), (stage, runs, []))[2].append((grid.label(row), column))
    return [(_users(grid, users), stage, runs) for stage, runs, users in found.values()]


def _users(grid: Grid, users: list[tuple[str, Any]]) -> list[Entry]:
    """The text columns of a table of stages: the arms that use one, and the columns."""
    columns = list(dict.fromkeys(str(column) for _, column in users))
    named = "all" if 1 < len(columns) == len(grid.columns) else ", ".join(columns)
    return [Entry(few(list(dict.fromkeys(label for label, _ in users)))), Entry(named if grid.axis else DASH)]


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
    """The mean over finished seeds, from the predictions that their runs saved; None where one saved none, or they are of different
    classes, or of so many that a matrix of them has no place in memory."""
    paths = [cell.last.path / f"predictions-{evaluator}.npz" for cell in done]
    if not paths or not all(path.is_file() for path in paths):
        return None
    saved = [kept.predictions(path) for path in paths]
    classes = saved[0].classes
    if len(classes) > MOST_COUNTED or any(each.classes != classes for each in saved):
        return None
    return Confusion(classes, np.mean([_counts(each) for each in saved], axis=0))


def _counts(saved: kept.Predictions) -> np.ndarray:
    counts_KK = np.zeros((len(saved.classes), len(saved.classes)), dtype=np.int64)
    np.add.at(counts_KK, (saved.labels_N, saved.predicted_N), 1)
    return counts_KK


@dataclass
class Matrix:
    """A confusion, and whose it is: arm, column and evaluator."""

    names: list[Entry]
    confusion: Confusion

    @property
    def title(self) -> str:
        return ", ".join(entry.text for entry in self.names if entry.text != DASH)


def _matrices(grid: Grid) -> list[Matrix]:
    """For every model and classifier's evaluator."""
    matrices = []
    for row, column, done in grid.models():
        for name in ("test", *done[0].last.evals):
            if (found := confusion(done, name)) is not None:
                matrices.append(Matrix([*which(grid, row, column), Entry(DASH if name == "test" else name)], found))
    return matrices


def per_class(grid: Grid) -> Table:
    """Recall, precision and F1 of the classes of every model, the lowest recall first; of many classes some."""
    matrices = _matrices(grid)
    rows = [
        [*m.names, Entry(m.confusion.classes[k]), Entry(f"{m.confusion.counts_KK[k].sum():,.0f}"), *_quality(m.confusion, k)]
        for m in matrices
        for k in np.argsort(m.confusion.recall_K, kind="stable")[:LOWEST]
    ]
    header = ["arm", grid.axis_name, "evaluator", "class", "images", "recall %", "precision %", "F1 %"]
    many = any(len(m.confusion.classes) > LOWEST for m in matrices)
    shown = f"The {LOWEST} classes with the lowest recall" if many else "All classes, that with the lowest recall first,"
    caption = f"{shown} after the last epoch, pooled over all finished seeds; on the test split, unless another evaluator is named."
    return Table("Classes", header, rows, caption, left=frozenset({0, 1, 2, 3})).trimmed()


def _quality(c: Confusion, k: int) -> list[Entry]:
    return [Entry(f"{100 * values_K[k]:.1f}") for values_K in (c.recall_K, c.precision_K, c.f1_K)]


def confusion_plot(grid: Grid) -> Plot | None:
    """Matrices of the first arms, as shares of each class; None for very many classes."""
    matrices = [m for m in _matrices(grid) if len(m.confusion.classes) <= MOST_CLASSES][:MOST_PANELS]
    if not matrices:
        return None
    figure, axes = panels(len(matrices), 3.9)
    for axis, m in zip(axes, matrices, strict=True):
        _draw(axis, m.confusion, m.title)
    return "Confusion: the share of each class's images (row) that are classified as each class (column), mean over seeds, in %.", figure


def _draw(axis: Axes, c: Confusion, title: str) -> None:
    K = len(c.classes)
    share_KK = 100 * c.counts_KK / np.maximum(c.counts_KK.sum(1, keepdims=True), 1e-9)
    colour_KK3 = np.broadcast_to(to_rgb(COLOURS[0]), (K, K, 3))  # as strong as the share, on paper of any colour
    axis.imshow(np.concatenate([colour_KK3, share_KK[..., None] / 100], axis=2), interpolation="nearest")
    axis.grid(False)
    axis.set(title=title, xlabel="predicted", ylabel="class")
    if K > NAMED_CLASSES:
        return
    axis.set_xticks(range(K), c.classes, rotation=90 if max(map(len, c.classes)) > SHORT else 0, fontsize=7)
    axis.set_yticks(range(K), c.classes, fontsize=7)
    if K <= 15:
        centred = {"ha": "center", "va": "center", "fontsize": 8 if K <= 10 else 6.5}
        for (i, j), share in np.ndenumerate(share_KK):
            if share >= 0.5:
                axis.text(j, i, f"{share:.0f}", color=WHITE if share > 60 else INK, **centred)
