"""How far the test images, of which all seeds share the same, leave open which of two arms is better."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np

from vitssl.report import kept
from vitssl.report.stats import OfImages

File = tuple[Path, int]  # and when it was last changed, in ns


def of_images(one: Sequence[Path], other: Sequence[Path]) -> OfImages | None:
    """What the images on which two arms were evaluated tell of the difference between their accuracies.

    Args:
        one, other: the predictions that an arm's seeds saved.

    Returns:
        None where a run saved none, or where they are of other images.
    """
    saved = [tuple(_file(path) for path in paths) for paths in (one, other)]
    return _of_images(*saved) if all(paths and all(paths) for paths in saved) else None


def _file(path: Path) -> File | None:
    """None where there is none."""
    return (path, path.stat().st_mtime_ns) if path.is_file() else None


@cache
def _of_images(one: tuple[File, ...], other: tuple[File, ...]) -> OfImages | None:
    """Once for each pair, which several sentences and tables ask for."""
    arms = [_right(files) for files in (one, other)]
    if any(arm is None for arm in arms):
        return None
    (labels_N, right_SN), (other_labels_N, other_right_SN) = arms
    N = len(labels_N)
    if N < 2 or not np.array_equal(labels_N, other_labels_N):
        return None
    error = float(np.std(right_SN.mean(0) - other_right_SN.mean(0), ddof=1)) / sqrt(N)
    by_seed = [arm_SN.var(0, ddof=1).mean() / len(arm_SN) for arm_SN in (right_SN, other_right_SN) if len(arm_SN) > 1]
    return OfImages(N, 100 * error, 100 * sqrt(sum(by_seed) / N))


@cache
def _right(files: tuple[File, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """The class of each image, and of each seed whether it recognised it; None where seeds are of other images."""
    saved = [kept.predictions(path) for path, _ in files]
    if any(not np.array_equal(each.labels_N, saved[0].labels_N) for each in saved):
        return None
    return saved[0].labels_N, np.array([each.predicted_N == each.labels_N for each in saved], dtype=float)
