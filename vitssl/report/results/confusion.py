"""Confusion matrices, which show what classes are taken for which, from the predictions that runs saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitssl.report.results import saved_files
from vitssl.report.results.collect import Cell
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.saved_files import Predictions
from vitssl.run_folder import predictions_of

MOST_COUNTED = 10_000  # the most classes of a matrix: 800 MB


@dataclass
class Confusion:
    """The confusion matrix of a row's models in a column, as an evaluator found it.

    Attributes:
        evaluator: the name of the evaluator.
        classes: the names of the classes.
        counts_KK: images by class (row) and predicted class (column), mean over seeds.
    """

    row: Row
    column: Any
    evaluator: str
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


def confusions(grid: Grid) -> list[Confusion]:
    """Return the confusion of every model by every evaluator of a classifier.

    Of the run's own evaluators, only the one of the sweep's metric counts.
    """
    return [
        Confusion(row, column, name, saved[0].classes, np.mean([_counts(seed) for seed in saved], axis=0))
        for row, column, done in grid.models()
        for name in (grid.own_evaluator, *done[0].last.evals)
        if (saved := _saved(done, name))
    ]


def _saved(done: list[Cell], evaluator: str) -> list[Predictions]:
    """Return the predictions of an evaluator that the runs of finished seeds saved.

    Empty if a run saved none, if the classes differ, or if there are too many classes for a matrix in memory.
    """
    paths = [predictions_of(cell.last.path, evaluator) for cell in done]
    if not all(path.is_file() for path in paths):
        return []
    saved = [saved_files.predictions(path) for path in paths]
    same_classes = all(seed.classes == saved[0].classes for seed in saved)
    return saved if same_classes and len(saved[0].classes) <= MOST_COUNTED else []


def _counts(saved: Predictions) -> np.ndarray:
    counts_KK = np.zeros((len(saved.classes), len(saved.classes)), dtype=np.int64)
    np.add.at(counts_KK, (saved.labels_N, saved.predicted_N), 1)
    return counts_KK
