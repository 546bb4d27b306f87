"""Means over seeds, and differences between arms with their 95 % confidence intervals (Student's t)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev, variance

from scipy.stats import t

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """Mean of arm minus baseline; ``low`` and ``high`` are None where one seed allows no interval."""

    mean: float
    low: float | None
    high: float | None
    how: str  # in words: which seeds the interval is computed from

    @property
    def contains_zero(self) -> bool:
        """Does the interval leave open which of the two is better?"""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high


def std(values: list[float]) -> float | None:
    """Sample standard deviation (n - 1); None for fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def difference(arm: dict[object, float], baseline: dict[object, float]) -> Difference | None:
    """Arm minus baseline, both by seed.

    Paired over the seeds when both have the same ones; otherwise Welch's two-sample interval. None when either is empty.
    """
    if not arm or not baseline:
        return None
    if set(arm) == set(baseline):
        differences, n = [arm[seed] - baseline[seed] for seed in arm], len(arm)
        if n == 1:
            return Difference(differences[0], None, None, "one seed")
        return _interval(mean(differences), stdev(differences) / sqrt(n), n - 1, f"paired over {n} seeds")
    a, b = list(arm.values()), list(baseline.values())
    centre = mean(a) - mean(b)
    if min(len(a), len(b)) == 1:
        return Difference(centre, None, None, "one seed in an arm")
    parts = [variance(a) / len(a), variance(b) / len(b)]
    spread = sum(parts)
    # Welch-Satterthwaite; without any spread the degrees of freedom do not matter
    freedom = spread**2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True)) if spread else 1.0
    return _interval(centre, sqrt(spread), freedom, f"unpaired (Welch), {len(a)} and {len(b)} seeds")


def _interval(centre: float, error: float, freedom: float, how: str) -> Difference:
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * error
    return Difference(centre, centre - half, centre + half, how)
