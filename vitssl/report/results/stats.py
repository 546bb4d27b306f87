"""Means over seeds, and differences between arms with 95 % confidence intervals, over seeds and over the test images.

The half width of a `Difference`'s interval combines two standard errors in quadrature:
    over seeds: Student's t, paired by seed.
    over images: all seeds share the test images, and another draw of these would move the difference, too (`ImageErrors`).

Example: the seeds 0, 1 and 2 give one arm 61, 63 and 62 % and the baseline 60, 61 and 60 %. The paired differences are 1, 2 and 2 points:
mean +1.67, standard error 0.33, and with t = 4.30 (2 degrees of freedom) the interval over seeds [+0.23, +3.10].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, isfinite, nan, sqrt
from statistics import mean, stdev

from scipy.special import ndtri, stdtrit

from vitssl.report.table import signed

CONFIDENCE = 0.95
# for an interval; that of two seeds reaches nine of their standard deviations to either side, beyond the range of many metrics
MIN_SEEDS = 3
ENOUGH_SEEDS = 5  # with fewer, an interval is so wide that it contains differences that matter
ROUNDING_ERROR = 1e-9  # a spread below this is the rounding error of equal figures that were computed in another order
LEAST_P = 1e-12  # smaller p-values are given as this one


@dataclass(frozen=True)
class ImageErrors:
    """What the single test images tell about a difference between two arms, in units of the metric (points for an accuracy).

    Attributes:
        count: the number of test images.
        error: standard error over the images, as far as images favour one of the arms at every seed: about how much another draw of test
            images would move the difference between so many seeds that chance in single ones averages out. Of one seed, which does not
            tell the two apart, it is McNemar's.
        chance: standard error of what is left, each seed being right or wrong on each image by chance. The error over seeds includes it,
            and is smaller only by luck.
    """

    count: int
    error: float
    chance: float


@dataclass(frozen=True)
class Difference:
    """The difference between two means: arm minus baseline.

    Attributes:
        how: in words, how the interval is computed and from which seeds, or why there is none.
        seeds: the number of paired seeds.
        error: standard error over seeds; 0 if they all give the same difference.
        image_errors: the error over the test images, if the interval covers it.
        overlap: test images / training images of a fold if each seed is tested on a fold, since the seeds then train on nearly the same
            images; otherwise 0.
    """

    mean: float
    how: str
    seeds: int
    error: float = 0.0
    image_errors: ImageErrors | None = None
    overlap: float = 0.0

    def __str__(self) -> str:
        """Return the mean with its interval, or say that every seed gives the same difference."""
        if self.constant:
            return f"{signed(self.mean)} in each seed" if self.mean else "same in each seed"
        low, high = self.low, self.high
        return signed(self.mean) + (f" [{signed(low)}, {signed(high)}]" if low is not None and high is not None else "")

    def with_image_errors(self, errors: ImageErrors) -> Difference:
        """Return the difference with an interval that also covers another draw of the test images, which all seeds share.

        The squares of the half widths add up. Seeds that happen to agree do not make the interval narrower than chance on single images of
        single seeds would. If there is no interval even so, the difference is returned as it is.
        """
        with_images = replace(self, image_errors=errors)
        if with_images.half() is None:
            return self
        seeds_agree = self._over_seeds(CONFIDENCE) < _normal(CONFIDENCE) * errors.chance
        how = f"by chance in single images, since {self.seeds} seeds happen to vary less" if seeds_agree else self.how
        return replace(with_images, how=f"{how}, combined in quadrature with the error over {errors.count:,} test images")

    def half(self, level: float = CONFIDENCE) -> float | None:
        """Return the half width of the interval; None if there is no interval.

        There is none for too few seeds, nor if its width is zero, which would claim that nothing is uncertain.
        """
        if self.seeds < MIN_SEEDS:
            return None
        width = self._over_seeds(level)
        if self.image_errors is not None:
            width = hypot(max(width, _normal(level) * self.image_errors.chance), _normal(level) * self.image_errors.error)
        return width if width >= ROUNDING_ERROR else None

    def _over_seeds(self, level: float) -> float:
        """Return the half width of the interval over seeds alone."""
        return float(stdtrit(self.seeds - 1, (1 + level) / 2)) * self.error

    @property
    def low(self) -> float | None:
        """The lower end of the interval, or None if there is no interval."""
        return None if (half := self.half()) is None else self.mean - half

    @property
    def high(self) -> float | None:
        """The upper end of the interval, or None if there is no interval."""
        return None if (half := self.half()) is None else self.mean + half

    @property
    def num_images(self) -> int | None:
        """The number of test images, or None unless the interval covers another draw of them."""
        return self.image_errors.count if self.image_errors else None

    @property
    def constant(self) -> bool:
        """Whether every seed gives the same difference."""
        return self.seeds > 1 and self.error == 0 and self.image_errors is None

    @property
    def open(self) -> bool:
        """Whether it may be chance which of the two arms is better."""
        half = self.half()
        return abs(self.mean) <= half if half is not None else self.seeds < MIN_SEEDS or self.mean == 0

    @cached_property
    def p(self) -> float | None:
        """The two-sided p-value: one minus the level at which an end of the interval is 0; None if there is no interval."""
        if self.half() is None:
            return None

        def beyond(p: float) -> float:
            """Return by how much the interval at the level 1 - p reaches beyond 0; without an interval, it is a point."""
            return (self.half(1 - p) or 0.0) - abs(self.mean)

        if beyond(LEAST_P) < 0:
            return LEAST_P
        from scipy.optimize import brentq  # which takes 0.3 s, a fifth of a report that compares nothing

        return float(brentq(beyond, LEAST_P, 1.0))


def _normal(level: float) -> float:
    """Return the half width of a normal confidence interval at ``level``, in standard errors."""
    return float(ndtri((1 + level) / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several comparisons after Holm's correction.

    Chance alone brings any of the corrected p-values below 0.05 in at most 5 % of such families of comparisons (S. Holm, Scandinavian
    Journal of Statistics, 1979).
    """
    corrected, largest = list(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        corrected[i] = largest = min(1.0, max(largest, (len(p_values) - rank) * p_values[i]))
    return corrected


def std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for fewer than two values, NaN if a value is not finite."""
    if len(values) < 2:
        return None
    return stdev(values) if all(map(isfinite, values)) else nan


def plus_minus(values: Sequence[float]) -> str:
    """Format the mean of ``values``, with their standard deviation if there are several."""
    spread = std(values)
    return f"{mean(values):.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def difference(arm: dict[object, float], baseline: dict[object, float], overlap: float = 0.0) -> Difference | None:
    """Return the difference ``arm`` minus ``baseline`` over the seeds that both have, because a seed also draws images and labels.

    None if they have no seed in common, or if a value is not finite.

    Args:
        arm: values by seed.
        baseline: values by seed.
        overlap: test images / training images of a fold; it is added to 1 / seeds in the variance of the mean (C. Nadeau and Y. Bengio,
            Machine Learning, 2003).
    """
    common = [seed for seed in arm if seed in baseline]
    if not common or not all(map(isfinite, (*arm.values(), *baseline.values()))):
        return None
    differences, n = [arm[seed] - baseline[seed] for seed in common], len(common)
    centre, whose = mean(differences), "" if n == len(arm) == len(baseline) else " common to both"
    if n == 1:
        return Difference(centre, f"one seed{whose}", n)
    how = f"Student's t, paired over {n} seeds{whose}" if n >= MIN_SEEDS else f"{n} seeds{whose} are too few for an interval"
    error = stdev(differences) * sqrt(1 / n + overlap)
    if error < ROUNDING_ERROR:
        return Difference(0.0 if abs(centre) < ROUNDING_ERROR else centre, how, n)
    how += ", widened because folds share training images" if overlap and n >= MIN_SEEDS else ""
    return Difference(centre, how, n, error, overlap=overlap)
