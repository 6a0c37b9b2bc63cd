"""Betting against a hypothesis: the stakes of several fixed bets, and the logarithm of their mean.

A stake grows by the factor 1 + bet * x with each observation x, whose mean is at most 0 if the hypothesis holds. The
mean of the stakes is then a supermartingale, so the probability that it ever reaches 1 / alpha is at most alpha,
however often one looks (Ville's inequality). The mean over fixed bets is Robbins' method of mixtures (1970).
"""

from collections.abc import Sequence
from math import exp, log

BETS = tuple(0.02 * 1.35**power for power in range(13))
"""Bets from 0.02 to 0.73: small ones for small differences, large ones for quick decisions."""


def log_mean(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of stakes, from the logarithms of the stakes."""
    highest = max(logs)
    return highest + log(sum(exp(log_stake - highest) for log_stake in logs) / len(logs))
