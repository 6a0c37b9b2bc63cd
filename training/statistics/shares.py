"""Confidence intervals of shares of successes, and of their differences."""

from math import sqrt
from statistics import NormalDist

Z = 1.96
"""The z value of 95% intervals."""


def z_of(level: float) -> float:
    """Return the z value of a two-sided interval at a level between 0 and 1."""
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson(share: float, count: int, z: float = Z) -> tuple[float, float]:
    """Return the interval of a share of `count` independent trials (Wilson, *Probable Inference, the Law of Succession,
    and Statistical Inference*, 1927)."""
    if count < 1:
        return 0.0, 1.0
    z2 = z * z / count
    center = (share + z2 / 2) / (1 + z2)
    half = z / (1 + z2) * sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, center - half), min(1.0, center + half)


def newcombe(
    share: float, low: float, high: float, other: float, other_low: float, other_high: float
) -> tuple[float, float]:
    """Return the interval of `other - share`, given the intervals of both (Newcombe, *Interval Estimation for the
    Difference between Independent Proportions*, 1998, method 10)."""
    difference = other - share
    return (
        difference - sqrt((other - other_low) ** 2 + (high - share) ** 2),
        difference + sqrt((other_high - other) ** 2 + (share - low) ** 2),
    )
