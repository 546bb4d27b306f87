"""Which classes are taken for which, from the predictions that runs saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitssl.report.results import kept
from vitssl.report.results.collect import Cell
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row

MOST_COUNTED = 10_000  # classes that are counted against one another: 800 MB


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
    """The confusion that an evaluator found of a row's models in a column."""

    row: Row
    column: Any
    evaluator: str
    confusion: Confusion


def matrices(grid: Grid) -> list[Matrix]:
    """For every model and classifier's evaluator; of the run's own that of the sweep's metric."""
    return [
        Matrix(row, column, name, found)
        for row, column, done in grid.models()
        for name in (grid.own, *done[0].last.evals)
        if (found := confusion(done, name)) is not None
    ]
