"""Student's t against tables and closed forms."""

from __future__ import annotations

from math import sqrt

import pytest

from vitssl.report.stats import difference, std


def test_std_divides_by_n_minus_one():
    assert std([1.0, 2.0, 3.0]) == 1.0
    assert std([5.0]) is None


def test_paired_over_the_same_seeds():
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.303."""
    result = difference({0: 11.0, 1: 22.0, 2: 33.0}, {2: 30.0, 1: 20.0, 0: 10.0})
    assert result.mean == pytest.approx(2.0) and result.how == "Student's t, paired over 3 seeds"
    assert result.high - 2 == pytest.approx(2 - result.low) == pytest.approx(4.3027 / sqrt(3), rel=1e-4)


def test_unpaired_over_other_seeds():
    """Equal variances 1 and n 3: standard error sqrt(2/3), Welch's degrees of freedom 4."""
    result = difference({0: 10.0, 1: 12.0, 2: 11.0}, {3: 5.0, 4: 7.0, 5: 6.0})
    assert result.mean == 5.0 and result.how == "Welch's t over 3 and 3 seeds"
    assert result.high - result.mean == pytest.approx(2.7764 * sqrt(2 / 3), rel=1e-4)


def test_welch_degrees_of_freedom():
    """Variances 1 (n 3) and 4 (n 3): (5/3)**2 / ((1/3)**2/2 + (4/3)**2/2) = 50/17 = 2.941; t = 3.2199 (between 3.182 and 4.303)."""
    result = difference({0: 1.0, 1: 2.0, 2: 3.0}, {3: 2.0, 4: 4.0, 5: 6.0})
    assert 3.182 < (result.high - result.mean) / sqrt(5 / 3) < 3.3


def test_one_seed_has_no_interval():
    paired, unpaired = difference({0: 3.0}, {0: 1.0}), difference({0: 3.0}, {1: 1.0, 2: 2.0})
    assert (paired.mean, paired.low, paired.how) == (2.0, None, "one seed")
    assert (unpaired.mean, unpaired.low, unpaired.how) == (1.5, None, "one seed in an arm")
    common = difference({0: 3.0}, {0: 1.0, 1: 2.0})
    assert (common.mean, common.low, common.how) == (2.0, None, "one seed of both")


def test_nothing_to_compare():
    assert difference({}, {0: 1.0}) is None and difference({0: 1.0}, {}) is None


def test_two_seeds_have_no_interval():
    """Of differences 0 and 20 it would reach from -117 to 137 points."""
    paired = difference({0: 50.0, 1: 70.0}, {0: 50.0, 1: 50.0})
    few = "2 seeds are too few for an interval"
    assert (paired.mean, paired.low, paired.high, paired.how, paired.open) == (10.0, None, None, few, True)
    unpaired = difference({0: 3.0, 1: 4.0}, {2: 1.0, 3: 2.0, 4: 3.0})
    assert (unpaired.low, unpaired.how, unpaired.open) == (None, "2 seeds in an arm are too few for an interval", True)


def test_differences_without_any_spread_have_no_interval():
    """One of no width would say that all is known; sums of equal figures differ in their last digits."""
    same = difference({0: 0.1 + 0.2, 1: 5.0, 2: 7.0}, {0: 0.3, 1: 5.0, 2: 7.0})
    assert (same.mean, same.low, same.constant, same.open) == (0.0, None, True, True)
    ahead = difference({0: 3.0, 1: 3.0, 2: 3.0}, {3: 1.0, 4: 1.0, 5: 1.0})
    assert (ahead.mean, ahead.low, ahead.high, ahead.constant, ahead.open) == (2.0, None, None, True, False)
    assert difference({0: 3.0, 1: 3.0}, {0: 1.0, 1: 1.0}).open  # two that agree may do so by chance


def test_of_unequal_seeds_those_that_both_have_are_paired():
    """A seed that one of them lacks, however good, says nothing of the difference."""
    whole = difference({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    more = difference({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0, 3: 90.0, 4: 90.0})
    assert (more.mean, more.low, more.high, more.how) == (whole.mean, whole.low, whole.high, f"{whole.how} of both")
    few = difference({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert (few.low, few.how) == (None, "2 seeds of both are too few for an interval")
