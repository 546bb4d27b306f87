"""Runs that are each tested on one of several parts of the same images (``data.folds``)."""

from __future__ import annotations

from collections.abc import Iterable

from vitssl.report.results.collect import Cell


def folds_of(cells: Iterable[Cell]) -> int | None:
    """The least number of folds of runs that are all tested on one; None where one of them is not."""
    found = {cell.last.run["data"]["folds"] for cell in cells}
    return None if None in found else min(found, default=None)


def overlap_of(cells: Iterable[Cell]) -> float:
    """Test images / training images of their folds, taken whole where a run trains on some of them (``data.images``); 0 where a seed is not
    tested on one."""
    return 0.0 if (folds := folds_of(cells)) is None else 1 / (folds - 1)


def of_folds(evaluator: str, cells: Iterable[Cell]) -> bool:
    """Does an evaluator look at the run's own test images, and not at those of other shards or another split?"""
    fields = [(cell.last.run.get("evals") or {}).get(evaluator) or {} for cell in cells]
    return all(of_run.get("shards") is None and of_run.get("split", "test") == "test" for of_run in fields)
