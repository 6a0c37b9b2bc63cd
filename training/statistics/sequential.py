"""A sequential test of whether a challenger is better than the champion. It can be evaluated after every pair.

Each scenario gives the challenger's success minus the champion's, d in [-1, 1]. We bet against the hypothesis that its
mean is at most 0: a stake grows by the factor 1 + b * d with each scenario, for several fixed b, and the mean of the
stakes is the wealth. If the hypothesis holds, the wealth is a supermartingale, so the probability that it ever reaches
1 / alpha is at most alpha, however often one looks (Ville's inequality). A second bet against "better by at least
`margin`" decides when to give up. (Waudby-Smith and Ramdas, *Estimating Means of Bounded Random Variables by Betting*,
Journal of the Royal Statistical Society B, 2024; Ville, 1939. The mean over fixed bets is Robbins' method of mixtures,
1970.)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import log, log1p

from learnloop_service.training.statistics.betting import BETS, log_mean


class Decision(StrEnum):
    """What the pairs so far imply."""

    PROMOTE = "promote"
    REFUSE = "refuse"
    """The challenger is not better by the margin."""
    CONTINUE = "continue"
    """Neither is certain yet."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The error rates, and how often the evidence is looked at.

    `alpha` bounds the probability of promoting a challenger that is not better, and of refusing one that is better by
    `margin`. The evidence is looked at every `look_every` scenarios.
    """

    alpha: float = 0.05
    margin: float = 0.1
    look_every: int = 10


@dataclass(frozen=True, slots=True)
class PairEvidence:
    """Logarithms of both wealths over the pairs so far."""

    pairs: int
    better: float
    """Log wealth of the bet against "not better"."""
    not_by_margin: float
    """Log wealth of the bet against "better by the margin"."""

    def decision(self, rule: Rule) -> Decision:
        """Return the decision under that rule."""
        if self.better >= -log(rule.alpha):
            return Decision.PROMOTE
        if self.not_by_margin >= -log(rule.alpha):
            return Decision.REFUSE
        return Decision.CONTINUE


class Bets:
    """The stakes of both bets, updated pair by pair."""

    def __init__(self, rule: Rule) -> None:
        self._margin = rule.margin
        self._pairs = 0
        self._better = [0.0] * len(BETS)
        self._worse = [0.0] * len(BETS)

    def add(self, difference: float, pairs: int = 1) -> None:
        """Add that many pairs with that difference, in [-1, 1]."""
        self._pairs += pairs
        # Scaled so that no factor can be 0 or less: the margin minus the difference is at most 1 + margin in size.
        against = (self._margin - difference) / (1 + self._margin)
        for number, bet in enumerate(BETS):
            self._better[number] += pairs * log1p(bet * difference)
            self._worse[number] += pairs * log1p(bet * against)

    def evidence(self) -> PairEvidence:
        """Return the evidence of the pairs so far."""
        return PairEvidence(self._pairs, log_mean(self._better), log_mean(self._worse))


def evidence(differences: Iterable[float], rule: Rule) -> PairEvidence:
    """Return the evidence of those pairs, given in the order of the scenarios."""
    bets = Bets(rule)
    for difference in differences:
        bets.add(difference)
    return bets.evidence()
