"""Detects that more rollouts than a bound show a symptom, with a bounded probability of ever raising a false alarm.

The unit is the group, because rollouts of one scenario are correlated. With a share x in [0, 1] of each group and a
bound b, three bets f have the wealth `r <- (r + 1/N) * prod(1 + f * (x - b) / b)`: the stake is spread over all N
iterations at which the symptom could begin. The evidence is the mean wealth plus the part that is not staked yet. As
long as the mean share is at most b, it is a supermartingale that starts at 1, so it ever reaches 1/alpha with a
probability of at most alpha, however often one looks (Ville's inequality; the bets are those of Waudby-Smith and Ramdas
2024, the spread stake follows the e-detectors of Shin, Ramdas and Rinaldo, arXiv 2203.03532).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from learnloop_service.training.diagnosis.diagnosis import CausePeriod

_BETS = (0.5, 0.75, 0.95)
_THRESHOLD = 800.0
"""Evidence at which a cause is named: with 16 detectors, at most 2% of healthy runs ever have a false alarm."""
_CLEAR_AFTER = 3
"""Iterations in a row with less than half of the bound after which a cause is cleared."""


@dataclass(frozen=True, slots=True)
class SymptomShares:
    """The shares of an iteration's groups that show a symptom."""

    iteration: int
    shares: tuple[float, ...]
    weights: tuple[float, ...] = ()
    """How much each counts, if they do not count alike. A bet is lowered by that: it would else risk more than all."""

    def weighted(self) -> list[tuple[float, float]]:
        """Return each share with its weight, of which the largest is 1."""
        weights = self.weights or (1.0,) * len(self.shares)
        return [(share, weight / max(weights)) for share, weight in zip(self.shares, weights, strict=True)]


@dataclass
class _Wealth:
    """Wealth of the bets since the last time that the cause was cleared, in logarithms where it can overflow."""

    bound: float
    iterations: int
    wealth: list[float] = field(default_factory=lambda: [0.0] * len(_BETS))
    staked: int = 0
    onset: int = 0
    gain: float = 0.0
    """Log wealth of the middle bet since `onset`, the beginning that has won most."""

    def add(self, observed: SymptomShares) -> float:
        """Bet on an iteration and return the evidence."""
        shares, bound = observed.weighted(), self.bound
        growth = [math.prod(1 + bet * weight * (share - bound) / bound for share, weight in shares) for bet in _BETS]
        self.staked = min(self.staked + 1, self.iterations)
        self.wealth = [
            min((wealth + 1 / self.iterations) * factor, 1e200)
            for wealth, factor in zip(self.wealth, growth, strict=True)
        ]
        won = math.log(max(growth[1], 1e-200))
        if self.gain <= 0:
            self.onset, self.gain = observed.iteration, 0.0
        self.gain += won
        return fmean(self.wealth) + 1 - self.staked / self.iterations


def weighted_mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the mean of values, each with its weight."""
    values, weights = zip(*weighted, strict=True)
    return fmean(values, weights)


def share_spans(observed: Sequence[SymptomShares], bound: float, iterations: int) -> list[CausePeriod]:
    """Return when the share was shown to be above `bound`. `iterations` is the planned number of iterations.

    After each span the threshold doubles, so that all alarms of a run together stay within twice the first one's
    probability.
    """
    spans: list[CausePeriod] = []
    wealth, current, low = _Wealth(bound, max(iterations, 1)), None, 0
    for iteration in observed:
        evidence = wealth.add(iteration)
        low = low + 1 if weighted_mean(iteration.weighted()) < bound / 2 else 0
        if current is None and evidence >= _THRESHOLD * 2 ** len(spans):
            current = CausePeriod(wealth.onset, iteration.iteration)
        if current is not None and low >= _CLEAR_AFTER:
            spans.append(CausePeriod(current.first, current.named, iteration.iteration))
            wealth, current = _Wealth(bound, max(iterations, 1)), None
    return [*spans, current] if current is not None else spans
