"""The gate: whether a candidate is better than the champion on a fixed number of tasks, with a bound on the error.

Both attempt the same tasks in the same order, and d is the difference of their success. A part of the error is spent on
bets, which are looked at after every batch (training/statistics/sequential.py explains them), and the rest on the exact
sign test over the tasks that differ, after the last one. Both parts are fixed beforehand, so by the union bound the
probability of accepting a candidate that is not better is at most `error`, however often one looks. (The sign test:
Dixon and Mood, *The Statistical Sign Test*, Journal of the American Statistical Association, 1946.)

A candidate that is not ahead after a quarter of the tasks is given up, which can only make acceptance rarer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb, log, log1p

from learnloop_service.training.statistics.betting import log_mean

BETS = (0.2, 0.4, 0.6, 0.85)
"""Stakes of the bets, in equal parts."""
_FEWEST = 16
"""Number of tasks before which no candidate is given up."""


class GateDecision(StrEnum):
    """What the tasks so far show."""

    BETTER = "better"
    NOT_BETTER = "not_better"
    """It was not shown to be better. That is no evidence that it is worse."""
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class GateRule:
    """The error, how it is spent, and how often the tasks are looked at."""

    error: float = 0.05
    """Bound on the probability of accepting a candidate that is not better."""
    exact: float = 0.8
    """Share of the error for the sign test. 0 where differences are no signs, because tasks have several rollouts."""
    look_every: int = 8

    @property
    def accepted_from(self) -> float:
        """Logarithm of the wealth from which the bets accept a candidate."""
        return -log((1 - self.exact) * self.error)

    def given_up_from(self, most: int) -> float:
        """Return the number of tasks, of `most`, from which a candidate that is not ahead is given up."""
        return max(_FEWEST, most / 4)


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The decision, and the evidence for it."""

    decision: GateDecision
    tasks: int
    won: int
    """Tasks on which the candidate had more success."""
    lost: int
    log_wealth: float
    """Logarithm of the wealth of the bets; they accept it from `GateRule.accepted_from`."""


def verdict(differences: Sequence[float], rule: GateRule, done: int, most: int) -> GateVerdict:
    """Return the verdict after `done` of `most` tasks. `differences`, in [-1, 1], are those of the tasks that both have
    a figure for, in their order."""
    won, lost = sum(difference > 0 for difference in differences), sum(difference < 0 for difference in differences)
    log_wealth = wealth_of(Counter(differences))
    decision = GateDecision.CONTINUE
    if log_wealth >= rule.accepted_from:
        decision = GateDecision.BETTER
    elif done >= most:
        is_better = rule.exact > 0 and sign_test(won, lost) <= rule.exact * rule.error
        decision = GateDecision.BETTER if is_better else GateDecision.NOT_BETTER
    elif done >= rule.given_up_from(most) and sum(differences) <= 0:
        decision = GateDecision.NOT_BETTER
    return GateVerdict(decision, len(differences), won, lost, log_wealth)


def wealth_of(counts: Mapping[float, int]) -> float:
    """Return the logarithm of the wealth after differences that occurred that many times."""
    return log_mean([sum(count * log1p(bet * value) for value, count in counts.items()) for bet in BETS])


def sign_test(won: int, lost: int) -> float:
    """Return the probability of at least that many wins, if wins and losses are equally likely."""
    pairs = won + lost
    return float(sum(comb(pairs, wins) for wins in range(won, pairs + 1)) / 2**pairs)
