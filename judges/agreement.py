"""Measures of how far two judges agree on the same rollouts."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import fmean

YES_FROM = 0.5
"""The score from which a judge's decision is a yes."""

Pair = tuple[float, float]
"""The scores that two judges gave one rollout, each in [0, 1]."""


def same_decisions(pairs: Sequence[Pair]) -> float | None:
    """Return the share of rollouts on which both decide yes, or both no; None without rollouts."""
    return fmean(_yes(one) == _yes(other) for one, other in pairs) if pairs else None


def kappa(pairs: Sequence[Pair]) -> float | None:
    """Return Cohen's kappa of the decisions, in [-1, 1]: (observed - expected) / (1 - expected) agreement.

    The expected agreement is that of two judges who decide independently and say yes as often as these (Cohen, 1960).
    None without rollouts, and where both always decide the same way, so that full agreement is expected.
    """
    if not pairs:
        return None
    observed = fmean(_yes(one) == _yes(other) for one, other in pairs)
    first, second = fmean(_yes(one) for one, _ in pairs), fmean(_yes(other) for _, other in pairs)
    expected = first * second + (1 - first) * (1 - second)
    return None if expected == 1 else (observed - expected) / (1 - expected)


def rank_correlation(pairs: Sequence[Pair]) -> float | None:
    """Return Spearman's rho, in [-1, 1]: Pearson's correlation of the ranks. Equal scores share their mean rank.

    None without rollouts, and where a judge gives all of them the same score.
    """
    if not pairs:
        return None
    ranks = [_ranks([pair[judge] for pair in pairs]) for judge in (0, 1)]
    away = [[rank - fmean(of_one) for rank in of_one] for of_one in ranks]
    spread = sqrt(sum(x * x for x in away[0]) * sum(y * y for y in away[1]))
    return sum(x * y for x, y in zip(*away, strict=True)) / spread if spread else None


def _yes(score: float) -> bool:
    return score >= YES_FROM


def _ranks(scores: Sequence[float]) -> list[float]:
    counted, rank, first = Counter(scores), {}, 1
    for score in sorted(counted):
        rank[score] = first + (counted[score] - 1) / 2
        first += counted[score]
    return [rank[score] for score in scores]
