"""Runs that are each tested on one of several parts of the same images (``data.folds``)."""

from __future__ import annotations

from collections.abc import Iterable

from vitssl.config.evals import evals_of
from vitssl.report.results.collect import Cell


def folds_of(cells: Iterable[Cell]) -> int | None:
    """Return the smallest number of folds of runs that are all tested on a fold; None if a run is not."""
    counts = {cell.last.config.data.folds for cell in cells}
    tested = [count for count in counts if count is not None]
    return min(tested, default=None) if len(tested) == len(counts) else None


def overlap_of(cells: Iterable[Cell]) -> float:
    """Return test images / training images of the folds that seeds are tested on; 0 if a seed is not tested on a fold.

    Whole folds are counted, even if a run trains on some of their images only (``data.images``).
    """
    return 0.0 if (folds := folds_of(cells)) is None else 1 / (folds - 1)


def of_folds(evaluator: str, cells: Iterable[Cell]) -> bool:
    """Whether an evaluator looks at the run's own test images, rather than at those of other shards or another split."""
    configs = [evals_of(cell.last.config).get(evaluator) for cell in cells]
    return all(config is None or (config.shards is None and config.split == "test") for config in configs)
