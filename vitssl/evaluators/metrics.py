"""Metrics of classifiers.

Shapes: N images.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score
from torch import Tensor


def top_k_correct(scores_NK: Tensor, labels_N: Tensor, k: int) -> Tensor:
    """(N,) bool: is the label among the k highest scores?"""
    best_Nk = scores_NK.topk(min(k, scores_NK.shape[1]), dim=1).indices
    return torch.any(best_Nk == labels_N[:, None], dim=1)


def calibration_error(confidence_N: np.ndarray, correct_N: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017, Eq. 3): bins of equal width, each weighted by its images."""
    bin_N = np.clip(np.ceil(confidence_N * bins).astype(int) - 1, 0, bins - 1)
    gap_b = np.bincount(bin_N, weights=correct_N - confidence_N, minlength=bins)
    return float(np.abs(gap_b).sum() / len(confidence_N))


def area_under_curve(probabilities_NK: np.ndarray, labels_N: np.ndarray) -> float | None:
    """Area under the ROC curve: of class 1 where there are two, else the mean of each against the rest; None where a class has no image."""
    K = probabilities_NK.shape[1]
    if not (np.bincount(labels_N, minlength=K) > 0).all() or K < 2:
        return None
    # class by class: scikit-learn's form for several allocates an integer for every image and class
    areas = [roc_auc_score(labels_N == k, probabilities_NK[:, k]) for k in ([1] if K == 2 else range(K))]
    return float(np.mean(areas))


def of_predictions(probabilities_NK: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """The metrics that need all predictions at once, in percent."""
    predicted_N, confidence_N = probabilities_NK.argmax(1), probabilities_NK.max(1)
    metrics = {
        "balanced_accuracy": balanced_accuracy_score(labels_N, predicted_N),
        "macro_f1": f1_score(labels_N, predicted_N, average="macro", zero_division=0),
        "auc": area_under_curve(probabilities_NK, labels_N),
        "ece": calibration_error(confidence_N, predicted_N == labels_N),
    }
    return {name: 100 * float(value) for name, value in metrics.items() if value is not None}
