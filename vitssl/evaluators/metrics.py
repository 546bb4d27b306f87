"""Metrics for classifiers.

Shapes: N images.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitssl.config.metrics import BINS


def top_k_correct(scores_NK: Tensor, labels_N: Tensor, k: int) -> Tensor:
    """Return whether the label of each image is among its k highest scores, bool (N,)."""
    best_Nk = scores_NK.topk(min(k, scores_NK.shape[1]), dim=1).indices
    return torch.any(best_Nk == labels_N[:, None], dim=1)


def calibration_error(confidence_N: np.ndarray, correct_N: np.ndarray) -> float:
    """Return the expected calibration error (Guo et al. 2017, Eq. 3), with bins of equal width weighted by their number of images."""
    bin_N = np.clip(np.ceil(confidence_N * BINS).astype(int) - 1, 0, BINS - 1)
    gap_b = np.bincount(bin_N, weights=correct_N - confidence_N, minlength=BINS)
    return float(np.abs(gap_b).sum() / len(confidence_N))


def area_under_curve(probabilities_NK: np.ndarray, labels_N: np.ndarray) -> np.ndarray | None:
    """Return the contributions of the images to the area under the ROC curve.

    With two classes it is the area of class 1, otherwise the mean area over classes, each against the rest.

    Returns:
        (N,) float32, whose mean is the area, and whose spread gives the area's standard error over other draws of the images (DeLong et
        al. 1988, Eqs. 3 to 5); None if a class has no image.
    """
    K = probabilities_NK.shape[1]
    if not (np.bincount(labels_N, minlength=K) > 0).all() or K < 2:
        return None
    curves = [1] if K == 2 else range(K)
    total_N = sum((_placements(probabilities_NK[:, k], labels_N == k) for k in curves), start=np.zeros(len(labels_N)))
    return (total_N / len(curves)).astype(np.float32)


def _placements(scores_N: np.ndarray, inside_N: np.ndarray) -> np.ndarray:
    """Return the contributions of the images to the area under one class's ROC curve, (N,) float64.

    For each image of the class (``inside_N``), take the share of the other images that score less, counting equal scores as half. The area
    is the mean of these shares. It is also the mean over the other images of the share of the class that scores more. Both are computed
    from ranks (Sun & Xu 2014).
    """
    N, ranks_N, share_N = len(scores_N), _ranks(scores_N), np.empty(len(scores_N))
    counts = {side: int(np.count_nonzero(inside_N == side)) for side in (True, False)}
    for side, chosen_N in ((True, inside_N), (False, ~inside_N)):
        share_N[chosen_N] = (ranks_N[chosen_N] - _ranks(scores_N[chosen_N])) / counts[not side]
    share_N[~inside_N] = 1 - share_N[~inside_N]
    area = share_N[inside_N].mean()
    weights = {side: N / count * np.sqrt(count / max(count - 1, 1)) for side, count in counts.items()}  # for sample variances
    return area + (share_N - area) * np.where(inside_N, weights[True], weights[False])


def _ranks(values_N: np.ndarray) -> np.ndarray:
    """Return the rank of each value, counted from 1, (N,) float64; equal values share their mean rank. If any is NaN, all ranks are."""
    if np.isnan(values_N).any():
        return np.full(len(values_N), np.nan)
    _, which_N, counts_U = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts_U) - (counts_U - 1) / 2)[which_N]


def prediction_metrics(probabilities_NK: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """Return the metrics that need all predictions at once, in percent: those of `class_metrics`, and the expected calibration error."""
    predicted_N = probabilities_NK.argmax(1)
    error = calibration_error(probabilities_NK.max(1), predicted_N == labels_N)
    return class_metrics(predicted_N, labels_N, probabilities_NK.shape[1]) | {"ece": 100 * error}


def class_metrics(predicted_N: np.ndarray, labels_N: np.ndarray, K: int) -> dict[str, float]:
    """Return the metrics in which each class counts alike, in percent.

    They are recall, averaged over classes that have images, and F1, averaged over classes that have images or are predicted for some.
    """
    # per class: the number of its images, of images predicted as it, and of correct predictions
    true_K, predicted_K, correct_K = (
        np.bincount(labels, minlength=K) for labels in (labels_N, predicted_N, labels_N[labels_N == predicted_N])
    )
    present_K = true_K > 0
    relevant_K = present_K | (predicted_K > 0)
    metrics = {
        "balanced_accuracy": (correct_K[present_K] / true_K[present_K]).mean(),
        "macro_f1": (2 * correct_K[relevant_K] / (true_K + predicted_K)[relevant_K]).mean(),
    }
    return {name: 100 * float(value) for name, value in metrics.items()}
