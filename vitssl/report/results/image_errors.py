"""How uncertain a difference between two arms is because of the test images, which all seeds share.

A metric is written as a mean over the test images, so that every image adds a value to it (`PARTS`). The spread of these values over the
images, divided by the square root of their number, is the metric's standard error over other draws of test images. For a difference, the
values of the arms are averaged over seeds and subtracted image by image. What chance in single seeds adds to that spread is in the spread
over seeds too, and is subtracted here.

Example: one arm classifies the first three of four images correctly, the other one the first two. The images add 100, 100, 100 and 0 to the
top-1 accuracy of one arm (75 %), and 100, 100, 0 and 0 to that of the other (50 %). The differences 0, 0, 100 and 0 have the mean 25 points
and the standard deviation 50, so the standard error of one seed is 50 / sqrt(4) = 25 points.

Shapes: S seeds, N images, K classes, B bins of confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np

from vitssl.config.metrics import BINS
from vitssl.report.results import saved_files
from vitssl.report.results.saved_files import Predictions
from vitssl.report.results.stats import ImageErrors


def estimate_image_errors(one: Sequence[Path], other: Sequence[Path] | None, metric: str = "top1") -> ImageErrors | None:
    """Return what the test images tell about the difference between two arms in a metric.

    Args:
        one: files with the predictions of an arm's seeds.
        other: files of the other arm for the same seeds, in the same order; None: the uncertainty of the first arm's metric itself.
        metric: the metric's key.

    Returns:
        None if a run saved no predictions, or not those that the metric is made of, if they are of different images, or not finite.
    """
    arms = [paths for paths in (one, other) if paths is not None]
    if not all(paths and all(path.is_file() for path in paths) for paths in arms):
        return None
    by_arm = [parts for paths in arms if (parts := _parts(tuple(map(saved_files.predictions, paths)), metric)) is not None]
    if len(by_arm) < len(arms):
        return None
    (labels_N, first_SN), N = by_arm[0], len(by_arm[0][0])
    if N < 2 or not all(np.array_equal(labels_N, other_labels_N) for other_labels_N, _ in by_arm):
        return None
    if any(len(parts_SN) != len(first_SN) for _, parts_SN in by_arm):
        return None
    gap_SN = first_SN - sum(parts_SN for _, parts_SN in by_arm[1:])
    over_images, by_chance = gap_SN.mean(0).var(ddof=1) / N, 0.0
    if (S := len(gap_SN)) > 1:  # of an image, the variance of its mean over seeds, apart from what seeds add to all images
        by_chance = (gap_SN - gap_SN.mean(1, keepdims=True)).var(0, ddof=1).mean() / S / N
    return ImageErrors(N, sqrt(max(0.0, over_images - by_chance)), sqrt(by_chance)) if np.isfinite(over_images) else None


@cache  # an arm is compared with every other one
def _parts(saved: tuple[Predictions, ...], metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the class of each image, and what it adds to the metric by seed (S, N); None if seeds differ in images or lack values."""
    if metric not in PARTS or any(not np.array_equal(seed.labels_N, saved[0].labels_N) for seed in saved):
        return None
    parts = [PARTS[metric](seed) for seed in saved]
    return None if any(part_N is None for part_N in parts) else (saved[0].labels_N, np.array(parts))


# ------------------------------------------------------------------------------------------------- what each image adds
#
# One value per image: their mean over the images is the metric, and their spread tells that of the metric over other draws of images.
# A metric that is no mean itself is linearised (by its influence function).


def _top1(saved: Predictions) -> np.ndarray:
    return 100.0 * (saved.predicted_N == saved.labels_N)


def _top5(saved: Predictions) -> np.ndarray:
    return 100.0 * saved.top5_N


def _loss(saved: Predictions) -> np.ndarray:
    return saved.loss_N.astype(float)


def _balanced_accuracy(saved: Predictions) -> np.ndarray:
    """Linearise the mean recall over the classes that have images.

    The spread within a class is that of a sample (n - 1), which matters if the class has few images.
    """
    K, N, hit_N = len(saved.classes), len(saved.labels_N), _top1(saved)
    counts_K = np.bincount(saved.labels_N, minlength=K)
    recall_K, present = np.bincount(saved.labels_N, weights=hit_N, minlength=K) / np.maximum(counts_K, 1), np.count_nonzero(counts_K)
    weight_K = N / (np.maximum(counts_K, 1) * present) * np.sqrt(counts_K / np.maximum(counts_K - 1, 1))
    return recall_K.sum() / present + (hit_N - recall_K[saved.labels_N]) * weight_K[saved.labels_N]


def _macro_f1(saved: Predictions) -> np.ndarray:
    """Linearise the mean of F1 = 2 hits / (images + predictions) over the classes that have images or predictions.

    An image adds the derivatives of the F1 of its own class and of its predicted class.
    """
    K, N = len(saved.classes), len(saved.labels_N)
    hit_N = saved.predicted_N == saved.labels_N
    either_K = np.bincount(saved.labels_N, minlength=K) + np.bincount(saved.predicted_N, minlength=K)
    f1_K = 2 * np.bincount(saved.labels_N[hit_N], minlength=K) / np.maximum(either_K, 1)
    share_K = N / (np.maximum(either_K, 1) * np.count_nonzero(either_K))
    added_N = (2 * hit_N - f1_K[saved.labels_N]) * share_K[saved.labels_N] - (f1_K * share_K)[saved.predicted_N]
    return 100 * (f1_K.sum() / np.count_nonzero(either_K) + added_N)


def _auc(saved: Predictions) -> np.ndarray | None:
    return None if saved.auc_N is None else 100 * saved.auc_N.astype(float)


def _ece(saved: Predictions) -> np.ndarray:
    """Split the sum over bins of |hits - confidences|: an image adds its own difference, with the sign of its bin's sum."""
    bin_N = np.clip(np.ceil(saved.confidence_N * BINS).astype(int) - 1, 0, BINS - 1)
    gap_N = (saved.predicted_N == saved.labels_N) - saved.confidence_N.astype(float)
    sign_B = np.sign(np.bincount(bin_N, weights=gap_N, minlength=BINS))
    return 100 * sign_B[bin_N] * gap_N


PARTS: dict[str, Callable[[Predictions], np.ndarray | None]] = {
    "top1": _top1, "top5": _top5, "loss": _loss, "balanced_accuracy": _balanced_accuracy, "macro_f1": _macro_f1, "auc": _auc,
    "ece": _ece,
}  # fmt: skip
