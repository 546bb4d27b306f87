"""Means over seeds, and differences between arms with their 95 % confidence intervals: over seeds, and over the images of the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, isfinite, nan, sqrt
from statistics import mean, stdev, variance

from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

from vitssl.report.table import signed

CONFIDENCE = 0.95
LEAST = 3  # seeds for an interval: of two it reaches nine of their standard deviations to either side, beyond what many metrics can be
ENOUGH = 5  # seeds; an interval of fewer is so wide that it holds differences which matter
MOST = 40  # seeds that anyone would train
NOTHING = 1e-9  # of spread: what is left of equal figures that were computed in another order
LEAST_P = 1e-12


@dataclass(frozen=True)
class OfImages:
    """What single images tell of a difference between accuracies, in points.

    Attributes:
        count: the test images.
        error: standard error over the images, each counted by the share of an arm's seeds that were right: another draw of test images
            would move the difference by about so much. Of one seed it is McNemar's.
        of_seeds: the least standard error over seeds: what it would be if each seed were right or wrong on each image by chance alone.
    """

    count: int
    error: float
    of_seeds: float

    def of_many(self, share: float) -> OfImages:
        """As it would be of so many more seeds that their standard error is this share of what it is: what chance in single seeds adds
        to the error over images goes with it, and how hard images are for one arm alone stays."""
        of_seeds = share * self.of_seeds
        return replace(self, error=hypot(sqrt(max(0.0, self.error**2 - self.of_seeds**2)), of_seeds), of_seeds=of_seeds)


@dataclass(frozen=True)
class Difference:
    """Mean of arm minus baseline.

    Attributes:
        how: in words: which seeds the interval is computed from, or why there is none.
        seeds: of the arm that has the fewest.
        error: standard error over seeds; 0 where they all give the same.
        freedom: degrees of freedom of its Student's t.
        of_images: what the interval covers of the test images, too.
        overlap: test images / training images of a fold, where seeds are tested on folds: what they train on is nearly the same.
    """

    mean: float
    how: str
    seeds: int
    error: float = 0.0
    freedom: float = 1.0
    of_images: OfImages | None = None
    overlap: float = 0.0

    def __str__(self) -> str:
        """With its interval; where there is no spread it says that."""
        if self.constant:
            return f"{signed(self.mean)} in each seed" if self.mean else "same in each seed"
        low, high = self.low, self.high
        return signed(self.mean) + (f" [{signed(low)}, {signed(high)}]" if low is not None and high is not None else "")

    def over_images(self, found: OfImages) -> Difference:
        """With an interval that covers another draw of test images too, which all seeds share: the squares of half widths add up.

        Seeds that happen to agree do not make it narrower than what chance does to one image of one seed. It is a little too wide rather
        than too narrow: that chance is in both parts.
        """
        both = replace(self, of_images=found)
        if both.half() is None:
            return self
        agree = self._over_seeds(CONFIDENCE) < _normal(CONFIDENCE) * found.of_seeds
        how = f"chance in single images, since {self.seeds} seeds vary less than that" if agree else self.how
        return replace(both, how=f"{how}, combined in quadrature with the error over {found.count:,} test images")

    def half(self, level: float = CONFIDENCE) -> float | None:
        """How far the interval reaches to either side; None where there is none: of too few seeds, or of no width, which would say that
        all is known."""
        if self.seeds < LEAST:
            return None
        width = self._over_seeds(level)
        if self.of_images is not None:
            width = hypot(max(width, _normal(level) * self.of_images.of_seeds), _normal(level) * self.of_images.error)
        return width if width >= NOTHING else None

    def _over_seeds(self, level: float) -> float:
        return float(stdtrit(self.freedom, (1 + level) / 2)) * self.error

    @property
    def low(self) -> float | None:
        return None if (half := self.half()) is None else self.mean - half

    @property
    def high(self) -> float | None:
        return None if (half := self.half()) is None else self.mean + half

    @property
    def images(self) -> int | None:
        """That were tested on, where the interval covers which ones they were, too."""
        return self.of_images.count if self.of_images else None

    @property
    def constant(self) -> bool:
        """Is it the same in every seed?"""
        return self.seeds > 1 and self.error == 0 and self.of_images is None

    @property
    def open(self) -> bool:
        """May it be chance which of the two is better?"""
        half = self.half()
        return abs(self.mean) <= half if half is not None else self.seeds < LEAST or self.mean == 0

    @cached_property
    def p(self) -> float | None:
        """Two-sided: one minus the level at which an end of the interval is 0; None where it has none."""
        if self.half() is None:
            return None
        if self.half(1 - LEAST_P) < abs(self.mean):
            return LEAST_P
        return float(brentq(lambda p: (self.half(1 - p) or 0.0) - abs(self.mean), LEAST_P, 1.0))

    def seeds_needed(self) -> int | None:
        """The fewest that would tell the two apart, if mean and spread stay as they are; None where MOST would not."""
        for n in range(LEAST, MOST + 1):
            share = sqrt((1 / n + self.overlap) / (1 / self.seeds + self.overlap))
            found = self.of_images and self.of_images.of_many(share)
            freedom = self.freedom * (n - 1) / (self.seeds - 1)
            if not replace(self, seeds=n, error=self.error * share, freedom=freedom, of_images=found).open:
                return n
        return None


def _normal(level: float) -> float:
    """Standard errors to either side of a mean that hold what chance gives."""
    return float(ndtri((1 + level) / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, corrected so that one that is below 0.05 is so by chance in at most 5 % of such families
    (S. Holm, Scandinavian Journal of Statistics, 1979)."""
    corrected, largest = list(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        corrected[i] = largest = min(1.0, max(largest, (len(p_values) - rank) * p_values[i]))
    return corrected


def std(values: list[float]) -> float | None:
    """Sample standard deviation (n - 1); None for fewer than two values, NaN where one is not finite."""
    if len(values) < 2:
        return None
    return stdev(values) if all(map(isfinite, values)) else nan


def plus_minus(values: Sequence[float]) -> str:
    """Mean and standard deviation, where there are several."""
    spread = std(values)
    return f"{mean(values):.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def difference(arm: dict[object, float], baseline: dict[object, float], overlap: float = 0.0) -> Difference | None:
    """Arm minus baseline, both by seed.

    Paired over the seeds that both have, if there are any: a seed draws images and labels too. Otherwise Welch's two-sample interval.
    None when either is empty, or has a value that is not finite.

    Args:
        overlap: test images / training images of a fold, which is added to 1 / seeds in the variance of the mean (C. Nadeau and Y. Bengio,
            Machine Learning, 2003).
    """
    if not arm or not baseline or not all(map(isfinite, (*arm.values(), *baseline.values()))):
        return None
    if common := [seed for seed in arm if seed in baseline]:
        both = "" if len(common) == len(arm) == len(baseline) else " common to both"
        return _paired([arm[seed] - baseline[seed] for seed in common], both, overlap)
    return _unpaired(list(arm.values()), list(baseline.values()), overlap)


def _paired(differences: list[float], whose: str, overlap: float) -> Difference:
    centre, n = mean(differences), len(differences)
    if n == 1:
        return Difference(centre, f"one seed{whose}", n)
    how = f"Student's t, paired over {n} seeds{whose}" if n >= LEAST else f"{n} seeds{whose} are too few for an interval"
    return _spread(centre, how, n, stdev(differences) * sqrt(1 / n + overlap), n - 1, overlap)


def _unpaired(a: list[float], b: list[float], overlap: float) -> Difference:
    centre, n = mean(a) - mean(b), min(len(a), len(b))
    if n == 1:
        return Difference(centre, "one seed in an arm", n)
    parts = [variance(x) * (1 / len(x) + overlap) for x in (a, b)]
    spread = sum(parts)
    # Welch-Satterthwaite; without any spread the degrees of freedom do not matter
    freedom = spread**2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True)) if spread else 1.0
    how = f"Welch's t over {len(a)} and {len(b)} seeds" if n >= LEAST else f"{n} seeds in an arm are too few for an interval"
    return _spread(centre, how, n, sqrt(spread), freedom, overlap)


def _spread(centre: float, how: str, seeds: int, error: float, freedom: float, overlap: float) -> Difference:
    """Without what is left of equal figures that were computed in another order."""
    if error < NOTHING:
        return Difference(0.0 if abs(centre) < NOTHING else centre, how, seeds)
    how += ", widened because folds share training images" if overlap and seeds >= LEAST else ""
    return Difference(centre, how, seeds, error, freedom, overlap=overlap)
