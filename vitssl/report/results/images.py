"""How far the test images, of which all seeds share the same, leave open which of two arms is better.

Shapes: S seeds, N images, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np

from vitssl.config.evals import BINS
from vitssl.report.results import kept
from vitssl.report.results.kept import Predictions
from vitssl.report.results.stats import OfImages

File = tuple[Path, int]  # and when it was last changed, in ns


def of_images(one: Sequence[Path], other: Sequence[Path] | None, metric: str = "top1") -> OfImages | None:
    """What the images on which two arms were evaluated tell of the difference between their values of a metric.

    Args:
        one, other: the predictions that an arm's seeds saved; without ``other``, of the value of the first alone.
        metric: its key.

    Returns:
        None where a run saved none, or not what the metric is made of, or where they are of other images.
    """
    saved = tuple(tuple(_file(path) for path in paths) for paths in (one, other) if paths is not None)
    return _of_images(saved, metric) if all(paths and all(paths) for paths in saved) else None


def _file(path: Path) -> File | None:
    """None where there is none."""
    return (path, path.stat().st_mtime_ns) if path.is_file() else None


@cache
def _of_images(arms: tuple[tuple[File, ...], ...], metric: str) -> OfImages | None:
    """Once for each pair, which several sentences and tables ask for."""
    found = [_parts(files, metric) for files in arms]
    if any(arm is None for arm in found):
        return None
    (labels_N, first_SN), N = found[0], len(found[0][0])
    if N < 2 or not all(np.array_equal(labels_N, other_labels_N) for other_labels_N, _ in found):
        return None
    others_N = sum(parts_SN.mean(0) for _, parts_SN in found[1:])
    error = float(np.std(first_SN.mean(0) - others_N, ddof=1)) / sqrt(N)
    by_seed = [arm_SN.var(0, ddof=1).mean() / len(arm_SN) for _, arm_SN in found if len(arm_SN) > 1]
    return OfImages(N, error, sqrt(sum(by_seed) / N))


@cache
def _parts(files: tuple[File, ...], metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The class of each image, and what it adds to the metric of each seed; None where seeds are of other images."""
    saved = [kept.predictions(path) for path, _ in files]
    if metric not in PARTS or any(not np.array_equal(each.labels_N, saved[0].labels_N) for each in saved):
        return None
    parts = [PARTS[metric](each) for each in saved]
    return None if any(part_N is None for part_N in parts) else (saved[0].labels_N, np.array(parts))


# ------------------------------------------------------------------------------------------------- what each image adds
#
# Values whose mean over the images is the metric, and whose spread is that of the metric over other draws of images: for what is no
# mean itself its linearisation (the influence function).


def _top1(saved: Predictions) -> np.ndarray:
    return 100.0 * (saved.predicted_N == saved.labels_N)


def _top5(saved: Predictions) -> np.ndarray:
    return 100.0 * saved.top5_N


def _loss(saved: Predictions) -> np.ndarray:
    return saved.loss_N.astype(float)


def _balanced_accuracy(saved: Predictions) -> np.ndarray:
    """The mean of the recalls of the classes that have images; of few images a class's spread is that of a sample (n - 1)."""
    K, N, hit_N = len(saved.classes), len(saved.labels_N), _top1(saved)
    counts_K = np.bincount(saved.labels_N, minlength=K)
    recall_K, present = np.bincount(saved.labels_N, weights=hit_N, minlength=K) / np.maximum(counts_K, 1), np.count_nonzero(counts_K)
    weight_K = N / (np.maximum(counts_K, 1) * present) * np.sqrt(counts_K / np.maximum(counts_K - 1, 1))
    return recall_K.sum() / present + (hit_N - recall_K[saved.labels_N]) * weight_K[saved.labels_N]


def _macro_f1(saved: Predictions) -> np.ndarray:
    """The mean of F1 = 2 hits / (images + predictions) over the classes that have either; the derivative of each adds to its images."""
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
    """The sum over bins of |hits - confidences|, so that an image adds its own difference with the sign of its bin's."""
    bin_N = np.clip(np.ceil(saved.confidence_N * BINS).astype(int) - 1, 0, BINS - 1)
    gap_N = (saved.predicted_N == saved.labels_N) - saved.confidence_N.astype(float)
    sign_B = np.sign(np.bincount(bin_N, weights=gap_N, minlength=BINS))
    return 100 * sign_B[bin_N] * gap_N


PARTS: dict[str, Callable[[Predictions], np.ndarray | None]] = {
    "top1": _top1, "top5": _top5, "loss": _loss, "balanced_accuracy": _balanced_accuracy, "macro_f1": _macro_f1, "auc": _auc,
    "ece": _ece,
}  # fmt: skip
