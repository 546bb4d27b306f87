"""Metrics of classifiers.

Shapes: N images.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitssl.config.evals import BINS


def top_k_correct(scores_NK: Tensor, labels_N: Tensor, k: int) -> Tensor:
    """(N,) bool: is the label among the k highest scores?"""
    best_Nk = scores_NK.topk(min(k, scores_NK.shape[1]), dim=1).indices
    return torch.any(best_Nk == labels_N[:, None], dim=1)


def calibration_error(confidence_N: np.ndarray, correct_N: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error (Guo et al. 2017, Eq. 3): bins of equal width, each weighted by its images."""
    bin_N = np.clip(np.ceil(confidence_N * bins).astype(int) - 1, 0, bins - 1)
    gap_b = np.bincount(bin_N, weights=correct_N - confidence_N, minlength=bins)
    return float(np.abs(gap_b).sum() / len(confidence_N))


def area_under_curve(probabilities_NK: np.ndarray, labels_N: np.ndarray) -> np.ndarray | None:
    """Area under the ROC curve: of class 1 where there are two, else the mean of each against the rest.

    Returns:
        (N,) float32 whose mean is the area, and whose spread is the area's over other draws of the images (DeLong et al. 1988, Eqs. 3
        to 5); None where a class has no image.
    """
    K = probabilities_NK.shape[1]
    if not (np.bincount(labels_N, minlength=K) > 0).all() or K < 2:
        return None
    curves = [1] if K == 2 else range(K)
    return (sum(_placements(probabilities_NK[:, k], labels_N == k) for k in curves) / len(curves)).astype(np.float32)


def _placements(scores_N: np.ndarray, inside_N: np.ndarray) -> np.ndarray:
    """(N,) float64: of one class's curve. The area is the mean over the images inside of the share of those outside that score less, an
    equal one counted half (Sun & Xu 2014: by ranks), and as much the mean over those outside of the share inside that scores more."""
    N, ranks_N, share_N = len(scores_N), _ranks(scores_N), np.empty(len(scores_N))
    counts = {side: np.count_nonzero(inside_N == side) for side in (True, False)}
    for side, chosen_N in ((True, inside_N), (False, ~inside_N)):
        share_N[chosen_N] = (ranks_N[chosen_N] - _ranks(scores_N[chosen_N])) / counts[not side]
    share_N[~inside_N] = 1 - share_N[~inside_N]
    area = share_N[inside_N].mean()
    weights = {side: N / count * np.sqrt(count / max(count - 1, 1)) for side, count in counts.items()}  # spreads are those of samples
    return area + (share_N - area) * np.where(inside_N, weights[True], weights[False])


def _ranks(values_N: np.ndarray) -> np.ndarray:
    """(N,) float64: each one's place in their order, from 1; equal ones share the mean of their places. All NaN where one is."""
    if np.isnan(values_N).any():
        return np.full(len(values_N), np.nan)
    _, which_N, counts_U = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts_U) - (counts_U - 1) / 2)[which_N]


def of_predictions(probabilities_NK: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """The metrics that need all predicted classes at once, in percent: recall, averaged over the classes that images are of; F1, over those
    that they are of or are taken for; and the calibration error."""
    predicted_N, confidence_N, K = probabilities_NK.argmax(1), probabilities_NK.max(1), probabilities_NK.shape[1]
    are_K, called_K, right_K = (np.bincount(of, minlength=K) for of in (labels_N, predicted_N, labels_N[labels_N == predicted_N]))
    there_K = are_K > 0
    met_K = there_K | (called_K > 0)
    metrics = {
        "balanced_accuracy": (right_K[there_K] / are_K[there_K]).mean(),
        "macro_f1": (2 * right_K[met_K] / (are_K + called_K)[met_K]).mean(),
        "ece": calibration_error(confidence_N, predicted_N == labels_N),
    }
    return {name: 100 * float(value) for name, value in metrics.items()}
