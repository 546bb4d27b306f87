"""Nearest neighbours and the linear probe against slow references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vitssl.evaluators import knn
from vitssl.evaluators.linear import logistic_regression, standardised


def data(N: int = 60, B: int = 9, D: int = 5, K: int = 3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, D, generator=generator), torch.randint(K, (N,), generator=generator), torch.randn(B, D, generator=generator)


@pytest.mark.parametrize("at_once", [7, 1000])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_votes_equal_a_slow_loop_whatever_is_held_at_a_time(monkeypatch, k, at_once):
    monkeypatch.setattr(knn, "TRAIN_AT_ONCE", at_once)
    train_ND, labels_N, test_BD = data()
    found_BK = knn.votes(test_BD, train_ND, labels_N, k, 0.07, 3)
    for test, found in zip(test_BD.tolist(), found_BK, strict=True):
        cosine = []
        for train, label in zip(train_ND.tolist(), labels_N.tolist(), strict=True):
            dot = sum(a * b for a, b in zip(test, train, strict=True))
            cosine.append((dot / math.hypot(*test) / math.hypot(*train), label))
        nearest = sorted(cosine, reverse=True)[:k]
        expected = [sum(math.exp((c - nearest[0][0]) / 0.07) for c, label in nearest if label == K) for K in range(3)]
        assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_a_low_temperature_is_the_nearest_neighbour_and_does_not_overflow():
    train_ND, labels_N, test_BD = data()
    nearest = knn.votes(test_BD, train_ND, labels_N, 1, 0.07, 3).argmax(1)
    assert torch.equal(knn.votes(test_BD, train_ND, labels_N, 60, 1e-4, 3).argmax(1), nearest)


def test_logistic_regression_is_scikit_learns():
    train_ND, labels_N, test_BD = (values.double() if values.is_floating_point() else values for values in data(N=300))
    train_ND, test_BD = standardised(train_ND * 3 + 7, test_BD * 3 + 7)
    assert train_ND.mean(0).abs().max() < 1e-9 and (train_ND.std(0, correction=0) - 1).abs().max() < 1e-5
    ours = logistic_regression(train_ND, labels_N, 3, l2=0.01, max_iter=500)
    theirs = LogisticRegression(C=1 / (0.01 * len(train_ND)), tol=1e-9, max_iter=5000).fit(train_ND.numpy(), labels_N.numpy())
    np.testing.assert_allclose(ours(test_BD).softmax(1).numpy(), theirs.predict_proba(test_BD.numpy()), atol=1e-4)
