"""Student's t against tables and closed forms."""

from __future__ import annotations

import random
from math import sqrt

import pytest
from scipy.stats import t, ttest_rel

from vitssl.report.results.stats import ImageErrors, difference, holm, std


def test_std_divides_by_n_minus_one():
    assert std([1.0, 2.0, 3.0]) == 1.0
    assert std([5.0]) is None


def test_paired_over_the_same_seeds():
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.303."""
    result = difference({0: 11.0, 1: 22.0, 2: 33.0}, {2: 30.0, 1: 20.0, 0: 10.0})
    assert result.mean == pytest.approx(2.0) and result.how == "Student's t, paired over 3 seeds"
    assert result.high - 2 == pytest.approx(2 - result.low) == pytest.approx(4.3027 / sqrt(3), rel=1e-4)


def test_one_seed_has_no_interval():
    paired = difference({0: 3.0}, {0: 1.0})
    assert (paired.mean, paired.low, paired.how) == (2.0, None, "one seed")
    common = difference({0: 3.0}, {0: 1.0, 1: 2.0})
    assert (common.mean, common.low, common.how) == (2.0, None, "one seed common to both")


def test_nothing_to_compare():
    assert difference({}, {0: 1.0}) is None and difference({0: 1.0}, {}) is None
    assert difference({0: 1.0}, {1: 2.0}) is None  # a seed also draws images: other seeds are another experiment


def test_two_seeds_have_no_interval():
    """Of differences 0 and 20 it would reach from -117 to 137 points."""
    paired = difference({0: 50.0, 1: 70.0}, {0: 50.0, 1: 50.0})
    few = "2 seeds are too few for an interval"
    assert (paired.mean, paired.low, paired.high, paired.how, paired.open) == (10.0, None, None, few, True)


def test_differences_without_any_spread_have_no_interval():
    """One of no width would say that all is known; sums of equal figures differ in their last digits."""
    same = difference({0: 0.1 + 0.2, 1: 5.0, 2: 7.0}, {0: 0.3, 1: 5.0, 2: 7.0})
    assert (same.mean, same.low, same.constant, same.open) == (0.0, None, True, True)
    ahead = difference({0: 3.0, 1: 3.0, 2: 3.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert (ahead.mean, ahead.low, ahead.high, ahead.constant, ahead.open) == (2.0, None, None, True, False)
    assert difference({0: 3.0, 1: 3.0}, {0: 1.0, 1: 1.0}).open  # two that agree may do so by chance


def test_of_unequal_seeds_those_that_both_have_are_paired():
    """A seed that one of them lacks, however good, says nothing of the difference."""
    whole = difference({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    more = difference({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0, 3: 90.0, 4: 90.0})
    assert (more.mean, more.low, more.high, more.how) == (whole.mean, whole.low, whole.high, f"{whole.how} common to both")
    few = difference({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert (few.low, few.how) == (None, "2 seeds common to both are too few for an interval")


def test_p_is_that_of_the_t_tests():
    a, b = {0: 11.0, 1: 22.0, 2: 33.0, 3: 41.0}, {0: 10.0, 1: 20.0, 2: 30.0, 3: 42.0}
    assert difference(a, b).p == pytest.approx(ttest_rel(list(a.values()), list(b.values())).pvalue)
    assert difference({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.5}).p is None and difference({0: 1.0}, {0: 0.0}).p is None


@pytest.mark.parametrize("found", [None, ImageErrors(300, 0.7, 0.2), ImageErrors(300, 0.1, 2.0)])
def test_p_is_below_five_percent_just_where_the_interval_leaves_out_zero(found):
    draw = random.Random(0)
    for _ in range(200):
        gap = difference({seed: draw.gauss(2, 2) for seed in range(4)}, dict.fromkeys(range(4), 0.0))
        gap = gap.with_image_errors(found) if found else gap
        assert (gap.p > 0.05) is gap.open
        assert gap.half(1 - gap.p) == pytest.approx(abs(gap.mean))


def test_far_from_chance_p_is_no_less_than_can_be_told():
    assert (
        0 < difference({0: 1e6, 1: 1e6, 2: 1e6 + 1e-3}, dict.fromkeys(range(3), 0.0)).with_image_errors(ImageErrors(9, 0.1, 0.0)).p < 1e-6
    )


def test_holm_is_as_its_step_down_loop_has_it():
    """Reject the least p while it is at most alpha / (number left); a corrected p is the least alpha at which it is rejected."""

    def rejected(p_values, alpha):
        left, out = sorted(range(len(p_values)), key=lambda i: p_values[i]), set()
        for rank, i in enumerate(left):
            if p_values[i] > alpha / (len(left) - rank):
                break
            out.add(i)
        return out

    draw = random.Random(1)
    for _ in range(200):
        p_values = [draw.random() ** 3 for _ in range(draw.randint(1, 6))]
        alpha = draw.random()
        assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected(p_values, alpha)
    assert holm([]) == [] and holm([0.03]) == [0.03]
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_of_folds_the_variance_of_the_mean_has_the_training_images_that_they_share():
    """Differences 1, 2, 3 of three of 5 folds: 1 / 3 + 1 / 4 of their variance of 1 (Nadeau and Bengio)."""
    arm, other = {0: 11.0, 1: 22.0, 2: 33.0}, {2: 30.0, 1: 20.0, 0: 10.0}
    paired = difference(arm, other, overlap=1 / 4)
    assert paired.high - 2 == pytest.approx(t.ppf(0.975, 2) * sqrt(1 / 3 + 1 / 4))
    assert paired.how == "Student's t, paired over 3 seeds, widened because folds share training images"
