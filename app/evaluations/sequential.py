"""Whether a challenger is better than the champion: a test on pairs that may be looked at after every one of them.

Each scenario gives the challenger's success less the champion's, d in [-1, 1]. Against the hypothesis that it is at
most 0 on average we bet: a stake grows by the factor 1 + b * d with each scenario, for several fixed b, and their mean
is the wealth. If the hypothesis holds, the wealth is a supermartingale, so that it ever reaches 1 / alpha with a
probability of at most alpha, however often one looks (Ville's inequality). A second bet against "better by at least
`margin`" tells when to give up. (Waudby-Smith and Ramdas, *Estimating Means of Bounded Random Variables by Betting*,
Journal of the Royal Statistical Society B, 2024; Ville, 1939. The mean over fixed bets is Robbins' method of mixtures,
1970.)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log, log1p

_BETS = tuple(0.02 * 1.35**power for power in range(13))
"""From 0.02 to 0.73: small ones for small differences, large ones for quick decisions."""


class Decision(StrEnum):
    """What the pairs so far say."""

    PROMOTE = "promote"
    REFUSE = "refuse"
    """That it is better by the margin is ruled out."""
    CONTINUE = "continue"
    """Neither, so far."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`alpha` bounds the probability that one which is not better is promoted, and that one which is better by `margin`
    is refused. Looks at the pairs are taken every `look_every` scenarios."""

    alpha: float = 0.05
    margin: float = 0.1
    look_every: int = 10


@dataclass(frozen=True, slots=True)
class Evidence:
    """Both wealths, in logarithms, over the pairs so far."""

    pairs: int
    better: float
    """Against "not better"."""
    not_by_margin: float
    """Against "better by the margin"."""

    def decision(self, rule: Rule) -> Decision:
        """By that rule."""
        if self.better >= -log(rule.alpha):
            return Decision.PROMOTE
        if self.not_by_margin >= -log(rule.alpha):
            return Decision.REFUSE
        return Decision.CONTINUE


class Bets:
    """The stakes of both bets, moved by one pair after the other."""

    def __init__(self, rule: Rule) -> None:
        self._margin = rule.margin
        self._pairs = 0
        self._better = [0.0] * len(_BETS)
        self._worse = [0.0] * len(_BETS)

    def add(self, difference: float) -> None:
        """One more pair; the difference is in [-1, 1]."""
        self._pairs += 1
        # Divided, so that no factor can be 0 or less: the margin less the difference is at most 1 + margin.
        against = (self._margin - difference) / (1 + self._margin)
        for number, bet in enumerate(_BETS):
            self._better[number] += log1p(bet * difference)
            self._worse[number] += log1p(bet * against)

    def evidence(self) -> Evidence:
        """Of the pairs so far."""
        return Evidence(self._pairs, _log_mean(self._better), _log_mean(self._worse))


def evidence(differences: Iterable[float], rule: Rule) -> Evidence:
    """Of those pairs, in the order of the scenarios."""
    bets = Bets(rule)
    for difference in differences:
        bets.add(difference)
    return bets.evidence()


def _log_mean(logs: list[float]) -> float:
    highest = max(logs)
    return highest + log(sum(exp(each - highest) for each in logs) / len(logs))
