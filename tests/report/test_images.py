"""What the test images, which all seeds share, leave open of a difference."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from tests.report.test_evaluations import predictions
from vitssl.report.advice import recommendation
from vitssl.report.best import best
from vitssl.report.collect import collect
from vitssl.report.grid import lay_out
from vitssl.report.images import paired_error


def saved(folder, right_SN, labels_N=None) -> list:
    """Files of seeds that were right of these images."""
    labels_N = np.zeros(len(right_SN[0]), dtype=int) if labels_N is None else labels_N
    files = []
    for seed, right_N in enumerate(right_SN):
        (folder / str(seed)).mkdir(parents=True)
        predictions(folder / str(seed), labels_N, np.where(right_N, labels_N, 1 - labels_N))
        files.append(folder / str(seed) / "predictions-test.npz")
    return files


def test_of_one_seed_it_is_mcnemars(tmp_path):
    """Of n images b are right in one arm alone and c in the other: the variance of (b - c) / n is (b + c - (b - c)^2 / n) / n^2, with
    n (n - 1) in place of n^2 where it is estimated from these images."""
    n, b, c = 50, 9, 4
    one, other = np.arange(n) < 20 + b, (np.arange(n) < 20) | (np.arange(n) >= n - c)
    error = paired_error(saved(tmp_path / "one", [one]), saved(tmp_path / "other", [other]))
    assert error == pytest.approx(100 * sqrt((b + c - (b - c) ** 2 / n) / (n * (n - 1))))


def test_it_is_as_a_bootstrap_over_images_has_it(tmp_path):
    draw = np.random.default_rng(0)
    hard_N = draw.random(200)
    arms = [draw.random((3, 200)) < share * hard_N for share in (0.9, 0.7)]
    error = paired_error(*(saved(tmp_path / name, arm) for name, arm in zip("ab", arms, strict=True)))
    gap_N = arms[0].mean(0) - arms[1].mean(0)
    again = [gap_N[draw.integers(0, 200, 200)].mean() for _ in range(4000)]
    assert error == pytest.approx(100 * np.std(again), rel=0.05)


def test_of_other_images_or_without_predictions_it_is_not_known(tmp_path):
    one = saved(tmp_path / "one", [np.ones(4, dtype=bool)])
    other = saved(tmp_path / "other", [np.ones(4, dtype=bool)], labels_N=np.array([0, 0, 0, 1]))
    assert paired_error(one, other) is None and paired_error(one, [tmp_path / "none.npz"]) is None and paired_error(one, []) is None


@pytest.mark.parametrize(("images", "better", "told"), [(50, 1, False), (50, 20, True)])
def test_an_arm_is_the_best_where_images_and_seeds_say_so(sweep, images, better, told):
    """In each of three seeds the same images more than scratch: no spread, and yet of one image of fifty nothing follows."""
    right = {"scratch": np.arange(images) < 20, "ssat": np.arange(images) < 20 + better}
    folder = sweep({arm: 100 * float(right_N.mean()) for arm, right_N in right.items()}, {"seed": [0, 1, 2]}, columns=None)
    for arm, right_N in right.items():
        for path in folder.glob(f"{arm}-*"):
            predictions(path, np.zeros(images, dtype=int), np.where(right_N, 0, 1))
    grid = lay_out(collect(folder))
    sentence, advice = best(grid, None), recommendation(grid, None)
    assert sentence.startswith(
        "Overall the best arm by top-1 is ssat: 80.00" if told else "The test images cannot tell ssat and scratch apart"
    )
    assert f"{100 * better / images:+.2f} points against scratch (in each of 3 seeds; ± " in sentence
    assert ("clearly" in advice) is told
