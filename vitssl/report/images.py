"""How far the test images, of which all seeds share the same, leave open which of two arms is better."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np

from vitssl.report import kept


def paired_error(one: Sequence[Path], other: Sequence[Path]) -> tuple[float, int] | None:
    """Standard error, in points, of the difference between two arms' accuracies over the images on which both were evaluated, and how many
    these are.

    Of each image the share of an arm's seeds that were right is taken, so that what remains is how unlike the images are: another draw
    of test images would have moved the difference by about so much.

    Args:
        one, other: the predictions that an arm's seeds saved.

    Returns:
        None where a run saved none, or where they are of other images.
    """
    arms = [_right(tuple(paths)) for paths in (one, other)]
    if any(arm is None for arm in arms):
        return None
    (labels_N, right_N), (other_labels_N, other_right_N) = arms
    if len(labels_N) < 2 or not np.array_equal(labels_N, other_labels_N):
        return None
    return 100 * float(np.std(right_N - other_right_N, ddof=1)) / sqrt(len(labels_N)), len(labels_N)


@cache
def _right(paths: tuple[Path, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """The class of each image, and the share of the seeds that recognised it."""
    if not paths or not all(path.is_file() for path in paths):
        return None
    saved = [kept.predictions(path) for path in paths]
    if any(not np.array_equal(each.labels_N, saved[0].labels_N) for each in saved):
        return None
    return saved[0].labels_N, np.mean([each.predicted_N == each.labels_N for each in saved], axis=0)
