"""Means over seeds, and differences between arms with their 95 % confidence intervals: over seeds, and over the images of the test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, sqrt
from statistics import mean, stdev, variance

from scipy.stats import t

LEVEL = 0.95
NORMAL = 1.96  # standard errors to either side of a mean that hold 95 % of what chance gives
LEAST = 3  # seeds for an interval: of two it reaches nine of their standard deviations to either side, beyond what many metrics can be
ENOUGH = 5  # seeds; an interval of fewer is so wide that it holds differences which matter
NOTHING = 1e-9  # of spread: what is left of equal figures that were computed in another order


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


@dataclass(frozen=True)
class Difference:
    """Mean of arm minus baseline.

    Attributes:
        low: of the interval; None where it has none, of too few seeds or of differences without any spread.
        how: in words: which seeds the interval is computed from, or why there is none.
        seeds: of the arm that has the fewest.
        constant: is it the same in every seed?
        images: that were tested on, where the interval covers which ones they were, too.
        images_half: how far it would reach to either side by the images alone.
    """

    mean: float
    low: float | None
    high: float | None
    how: str
    seeds: int
    constant: bool = False
    images: int | None = None
    images_half: float = 0.0

    @property
    def open(self) -> bool:
        """May it be chance which of the two is better?"""
        if self.low is None or self.high is None:
            return self.seeds < LEAST or self.mean == 0
        return self.low <= 0 <= self.high

    def over_images(self, found: OfImages) -> Difference:
        """With an interval that covers another draw of test images too, which all seeds share: the squares of half widths add up.

        Seeds that happen to agree do not make it narrower than what chance does to one image of one seed. It is a little too wide rather
        than too narrow: that chance is in both parts.
        """
        over_seeds, least = 0.0 if self.high is None else self.high - self.mean, NORMAL * found.of_seeds
        half = hypot(max(over_seeds, least), NORMAL * found.error)
        if self.seeds < LEAST or half < NOTHING:
            return self
        how = self.how if over_seeds >= least else f"chance in single images, since {self.seeds} seeds spread less than that"
        how += f", in quadrature with the error over {found.count:,} test images"
        low, high = self.mean - half, self.mean + half
        return replace(self, low=low, high=high, how=how, constant=False, images=found.count, images_half=NORMAL * found.error)


def std(values: list[float]) -> float | None:
    """Sample standard deviation (n - 1); None for fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def difference(arm: dict[object, float], baseline: dict[object, float]) -> Difference | None:
    """Arm minus baseline, both by seed.

    Paired over the seeds that both have, if there are any: a seed draws images and labels too. Otherwise Welch's two-sample interval.
    None when either is empty.
    """
    if not arm or not baseline:
        return None
    if common := [seed for seed in arm if seed in baseline]:
        return _paired([arm[seed] - baseline[seed] for seed in common], "" if len(common) == len(arm) == len(baseline) else " of both")
    return _unpaired(list(arm.values()), list(baseline.values()))


def _paired(differences: list[float], whose: str) -> Difference:
    centre, n = mean(differences), len(differences)
    if n == 1:
        return Difference(centre, None, None, f"one seed{whose}", n)
    how = f"Student's t, paired over {n} seeds{whose}" if n >= LEAST else f"{n} seeds{whose} are too few for an interval"
    return _interval(centre, stdev(differences) / sqrt(n), n - 1, how, n)


def _unpaired(a: list[float], b: list[float]) -> Difference:
    centre, n = mean(a) - mean(b), min(len(a), len(b))
    if n == 1:
        return Difference(centre, None, None, "one seed in an arm", n)
    parts = [variance(a) / len(a), variance(b) / len(b)]
    spread = sum(parts)
    # Welch-Satterthwaite; without any spread the degrees of freedom do not matter
    freedom = spread**2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True)) if spread else 1.0
    how = f"Welch's t over {len(a)} and {len(b)} seeds" if n >= LEAST else f"{n} seeds in an arm are too few for an interval"
    return _interval(centre, sqrt(spread), freedom, how, n)


def _interval(centre: float, error: float, freedom: float, how: str, seeds: int) -> Difference:
    """None where there is no spread: an interval of no width would say that all is known."""
    if error < NOTHING:
        return Difference(0.0 if abs(centre) < NOTHING else centre, None, None, how, seeds, constant=True)
    if seeds < LEAST:
        return Difference(centre, None, None, how, seeds)
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * error
    return Difference(centre, centre - half, centre + half, how, seeds)
