"""What the gate (training/statistics/gate.py) can show with a number of tasks, before anything is paid.

A candidate wins and loses tasks. The numbers of both decide, so the probability of acceptance is exact: the sum over
all ways to reach numbers that are accepted, at any look. They are followed task by task for one gain and weighted anew
for every other. Numbers of lost tasks that chance almost never reaches are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, fsum, log, sqrt
from typing import NamedTuple

from learnloop_service.training.statistics.error_shares import ERROR
from learnloop_service.training.statistics.gate import GateRule, sign_test, wealth_of

FEWEST_TASKS = 8
"""Below this number of tasks hardly any gain can be shown."""
USUAL_DIFFERING = 0.12
"""Share of tasks on which two attempts of one agent differ, where it cannot be measured because nothing is random."""
PROBABILITY = 0.8
"""Probability with which a gain has to be accepted to count as one that can be shown."""
FIRST_PROMPT = GateRule(error=ERROR / 4)
"""The rule for the first prompt of an improvement, which has a quarter of the error."""
_SMALL_GAIN = 0.1
_LARGE_GAIN = 0.6
"""Gain that must be possible to show, or the number of tasks is too small to be sensible."""
_FOLLOWED_GAIN = 0.2


@dataclass(frozen=True, slots=True)
class Power:
    """What a number of tasks can show."""

    tasks: int
    gain: float | None
    """Smallest gain, in whole points, that is accepted with `PROBABILITY`; None if there is none."""
    small: float
    """Probability that a gain of 10 points is accepted."""

    @property
    def sentence(self) -> str:
        """What can be shown, in a sentence."""
        tasks, small = f"With {self.tasks:,} validation tasks", f"one of 10 points with {100 * self.small:.0f}%"
        if self.gain is None:
            return f"{tasks} no gain is shown with {PROBABILITY:.0%} probability, {small}."
        return f"{tasks} a gain of {100 * self.gain:.0f} points is shown with {PROBABILITY:.0%} probability, {small}."

    @property
    def warning(self) -> str | None:
        """A warning if only very large gains can be shown."""
        if self.gain is not None and self.gain < _LARGE_GAIN:
            return None
        return (
            f"{self.tasks} validation tasks show no gain below {100 * _LARGE_GAIN:.0f} points with {PROBABILITY:.0%} "
            "probability. Add tasks."
        )


class TooFewTasks(ValueError):
    """There are too few validation tasks to show anything."""

    def __init__(self, tasks: int) -> None:
        super().__init__(f"{tasks} validation tasks are too few to show any gain: at least {FEWEST_TASKS} are needed.")


@cache
def power(tasks: int, differing: float = USUAL_DIFFERING, rule: GateRule = FIRST_PROMPT) -> Power:
    """Return what `tasks` tasks can show, if two attempts of the same agent differ on a share `differing` of them.

    Raises TooFewTasks.
    """
    if tasks < FEWEST_TASKS:
        raise TooFewTasks(tasks)
    accepted = acceptance(tasks, differing, rule)
    points = range(1, 101)
    low, high = 0, len(points)
    while low < high:  # the first number of points that is accepted often enough
        middle = (low + high) // 2
        low, high = (low, middle) if accepted(points[middle] / 100) >= PROBABILITY else (middle + 1, high)
    gain = points[low] / 100 if low < len(points) else None
    return Power(tasks, gain, accepted(_SMALL_GAIN))


def acceptance(tasks: int, differing: float, rule: GateRule) -> Callable[[float], float]:
    """Return the probability of acceptance as a function of the true gain, in [0, 1].

    Without a gain, half of the tasks that differ are won and half are lost. A gain is won in addition.
    """
    chance = differing / 2
    followed = _shares(_FOLLOWED_GAIN, chance)
    ends = _accepted(tasks, followed, rule)

    def probability(gain: float) -> float:
        won, lost, equal = (
            log(max(share, 1e-300) / before) for share, before in zip(_shares(gain, chance), followed, strict=True)
        )
        return fsum(exp(log(end.probability) + end.won * won + end.lost * lost + end.equal * equal) for end in ends)

    return probability


def _shares(gain: float, chance: float) -> tuple[float, float, float]:
    """Return the shares of tasks that are won, lost and neither."""
    lost = max(1e-6, min(chance, (1 - gain) / 2))
    won = min(gain + lost, 1 - lost)
    return won, lost, max(1e-6, 1 - won - lost)


class _End(NamedTuple):
    """Numbers of tasks at which a candidate is accepted, and the probability of getting there."""

    won: int
    lost: int
    equal: int
    probability: float


def _accepted(tasks: int, shares: tuple[float, float, float], rule: GateRule) -> list[_End]:
    """Return all ways in which a candidate is accepted."""
    p_won, p_lost, p_equal = shares
    most_lost = min(tasks, ceil(tasks * p_lost + 6 * sqrt(tasks * p_lost) + rule.look_every))
    by_bets = _boundary(most_lost, lambda won, lost: wealth_of({1.0: won, -1.0: lost}) >= rule.accepted_from)
    most_won = min(tasks, by_bets[-1] + rule.look_every)
    at_the_end = by_bets
    if rule.exact:
        at_the_end = _boundary(most_lost, lambda won, lost: sign_test(won, lost) <= rule.exact * rule.error)
    none = [0.0] * (most_won + 1)
    # Probabilities by the number of tasks lost and won.
    ways = [[1.0, *none[1:]], *([*none] for _ in range(most_lost))]
    ends: list[_End] = []
    for count in range(1, tasks + 1):
        for lost in range(min(count, most_lost), -1, -1):
            row, fewer_lost = ways[lost], ways[lost - 1] if lost else none
            ways[lost] = [
                p_equal * same + p_lost * after_loss + p_won * after_win
                for same, after_loss, after_win in zip(row, fewer_lost, [0.0, *row[:-1]], strict=True)
            ]
        if count % rule.look_every and count < tasks:
            continue
        is_last, gives_up = count == tasks, count >= rule.given_up_from(tasks)
        for lost, row in enumerate(ways):
            enough = min(by_bets[lost], at_the_end[lost]) if is_last else by_bets[lost]
            ends += [_End(won, lost, count - won - lost, way) for won, way in enumerate(row) if won >= enough and way]
            first = lost + 1 if gives_up else 0
            ways[lost] = [way if first <= won < enough else 0.0 for won, way in enumerate(row)]
    return ends


def _boundary(most_lost: int, is_enough: Callable[[int, int], bool]) -> Sequence[int]:
    """Return the smallest number of wins that is enough, for each number of losses up to `most_lost`."""
    boundary, won = [], 0
    for lost in range(most_lost + 1):
        while not is_enough(won, lost):
            won += 1
        boundary.append(won)
    return boundary
