"""Metrics against slow loops and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from vitssl.evaluators.metrics import area_under_curve, calibration_error, prediction_metrics, top_k_correct


def some(K: int, N: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels_N = rng.integers(0, K, N)
    scores_NK = rng.normal(size=(N, K)) + 1.5 * np.eye(K)[labels_N]
    probabilities_NK = np.exp(scores_NK) / np.exp(scores_NK).sum(1, keepdims=True)
    return probabilities_NK.astype(np.float32), labels_N


def test_top_k():
    scores_BK = torch.tensor([[0.1, 0.9, 0.5], [0.9, 0.1, 0.5]])
    assert top_k_correct(scores_BK, torch.tensor([1, 2]), 1).tolist() == [True, False]
    assert top_k_correct(scores_BK, torch.tensor([2, 2]), 2).tolist() == [True, True]
    assert top_k_correct(scores_BK, torch.tensor([0, 1]), 5).tolist() == [True, True]


def test_calibration_error_equals_a_slow_loop():
    probabilities_NK, labels_N = some(4)
    confidence_N, correct_N = probabilities_NK.max(1), probabilities_NK.argmax(1) == labels_N
    expected = 0.0
    for i in range(15):
        inside = [n for n in range(200) if i / 15 < confidence_N[n] <= (i + 1) / 15]
        if inside:
            gap = np.mean(correct_N[inside]) - np.mean(confidence_N[inside].astype(float))
            expected += len(inside) / 200 * abs(gap)
    assert calibration_error(confidence_N, correct_N) == pytest.approx(expected, abs=1e-7)
    assert calibration_error(np.ones(4), np.array([True] * 4)) == 0 and calibration_error(np.ones(4), np.array([False] * 4)) == 1


@pytest.mark.parametrize("K", [2, 4])
def test_area_under_curve_is_the_share_of_pairs_in_the_right_order(K):
    probabilities_NK, labels_N = some(K)
    areas = []
    for k in [1] if K == 2 else range(K):
        inside, outside = probabilities_NK[labels_N == k, k], probabilities_NK[labels_N != k, k]
        areas.append(np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside]))
    found_N = area_under_curve(probabilities_NK, labels_N)
    assert found_N.mean() == pytest.approx(np.mean(areas)) and found_N.shape == (len(labels_N),)
    curves = {"y_score": probabilities_NK[:, 1]} if K == 2 else {"y_score": probabilities_NK, "multi_class": "ovr"}
    assert found_N.mean() == pytest.approx(roc_auc_score(labels_N, **curves))
    labels_N[labels_N == 0] = 1
    assert area_under_curve(probabilities_NK, labels_N) is None, "a class without an image has no curve"


def test_an_area_has_delongs_variance():
    """Their Eqs. 3 to 5, pair by pair: the sample variance of the shares inside over the images inside, and of those outside over these."""
    probabilities_NK, labels_N = some(2)
    inside, outside = (probabilities_NK[labels_N == k, 1].astype(float) for k in (1, 0))
    wins = np.array([[(a > b) + (a == b) / 2 for b in outside] for a in inside])
    expected = sum((share.var(ddof=1) / len(share)) for share in (wins.mean(1), wins.mean(0)))
    found_N = area_under_curve(probabilities_NK, labels_N)
    assert found_N.var() / len(found_N) == pytest.approx(expected, rel=1e-5)


def test_balanced_accuracy_and_f1_by_hand():
    """Three images of class 0, one of class 1; all are called 0 but one of the former."""
    probabilities_NK = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], dtype=np.float32)
    found = prediction_metrics(probabilities_NK, np.array([0, 0, 0, 1]))
    assert found["balanced_accuracy"] == pytest.approx(100 * (2 / 3 + 0) / 2)
    assert found["macro_f1"] == pytest.approx(100 * (2 / 3 + 0) / 2)
    assert area_under_curve(probabilities_NK, np.array([0, 0, 0, 1])).mean() == pytest.approx(2 / 3)
    assert set(found) == {"balanced_accuracy", "macro_f1", "ece"}


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")  # that is the case here
@pytest.mark.parametrize("K", [2, 5, 40])
def test_balanced_accuracy_and_f1_equal_scikit_learns(K):
    """Of classes without an image too, some of which others are taken for."""
    probabilities_NK, labels_N = some(K, 60)
    labels_N[labels_N == 0] = 1
    found, predicted_N = prediction_metrics(probabilities_NK, labels_N), probabilities_NK.argmax(1)
    assert found["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(labels_N, predicted_N))
    assert found["macro_f1"] == pytest.approx(100 * f1_score(labels_N, predicted_N, average="macro"))


def test_equal_scores_share_their_place():
    labels_N = np.array([0, 1, 1, 0, 1, 0])
    probabilities_NK = np.repeat(np.array([[0.5, 0.2, 0.5, 0.5, 0.8, 0.2]], dtype=np.float32), 2, 0).T
    assert area_under_curve(probabilities_NK, labels_N).mean() == pytest.approx(roc_auc_score(labels_N, probabilities_NK[:, 1]))


def test_what_is_no_number_has_no_order():
    """A network whose values overflowed has no area under a curve, rather than that of images that are all alike."""
    probabilities_NK, labels_N = some(3)
    probabilities_NK[7] = np.nan
    assert np.isnan(area_under_curve(probabilities_NK, labels_N).mean())
