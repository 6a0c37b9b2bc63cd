"""What the gate (training/statistics/gate.py) can show with a number of tasks, before anything is paid.

A candidate wins and loses tasks. The numbers of both decide, so the probability of acceptance is exact: the sum over
all ways to reach numbers that are accepted, at any look. They are followed task by task for one gain and weighted anew
for every other. Numbers of lost tasks that chance almost never reaches are left out.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, fsum, log, sqrt

from learnloop_service.training.statistics.error_shares import ERROR
from learnloop_service.training.statistics.gate import GateRule, sign_test, wealth_of

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
_POINTS = range(1, 101)


@dataclass(frozen=True, slots=True)
class Power:
    """What a number of tasks can show."""

    tasks: int
    gain: float | None
    """Smallest gain, in whole points, that is accepted with `PROBABILITY`; None if there is none."""
    small: float
    """Probability that a gain of 10 points is accepted."""

    @property
    def sentences(self) -> list[str]:
        """What can be shown, and a warning if only very large gains can."""
        gain = "no gain" if self.gain is None else f"a gain of {100 * self.gain:.0f} points"
        sentence = (
            f"With {self.tasks:,} validation tasks {gain} is shown with {PROBABILITY:.0%} probability, "
            f"one of 10 points with {100 * self.small:.0f}%."
        )
        if self.gain is not None and self.gain < _LARGE_GAIN:
            return [sentence]
        return [sentence, f"That is too few to show a gain below {100 * _LARGE_GAIN:.0f} points. Add tasks."]


@cache
def power(tasks: int, differing: float = USUAL_DIFFERING, rule: GateRule = FIRST_PROMPT) -> Power:
    """Return what `tasks` tasks can show, if two attempts of the same agent differ on a share `differing` of them."""
    accepted = acceptance(tasks, differing, rule)
    shown = bisect_left(_POINTS, True, key=lambda points: accepted(points / 100) >= PROBABILITY)
    gain = _POINTS[shown] / 100 if shown < len(_POINTS) else None
    return Power(tasks, gain, accepted(_SMALL_GAIN))


def acceptance(tasks: int, differing: float, rule: GateRule) -> Callable[[float], float]:
    """Return the probability of acceptance as a function of the true gain, in [0, 1].

    Without a gain, half of the tasks that differ are won and half are lost. A gain is won in addition.
    """
    chance = differing / 2
    followed = _shares(_FOLLOWED_GAIN, chance)
    ends = list(_accepted(tasks, followed, rule))

    def probability(gain: float) -> float:
        logs = [log(max(share, 1e-300) / before) for share, before in zip(_shares(gain, chance), followed, strict=True)]
        return fsum(
            exp(log(way) + sum(count * weight for count, weight in zip(counts, logs, strict=True)))
            for way, counts in ends
        )

    return probability


def _shares(gain: float, chance: float) -> tuple[float, float, float]:
    """Return the shares of tasks that are won, lost and neither."""
    lost = max(1e-6, min(chance, (1 - gain) / 2))
    won = min(gain + lost, 1 - lost)
    return won, lost, max(1e-6, 1 - won - lost)


def _accepted(
    tasks: int, shares: tuple[float, float, float], rule: GateRule
) -> Iterator[tuple[float, tuple[int, int, int]]]:
    """Yield all ways in which a candidate is accepted: the probability, and how many tasks were won, lost and neither
    then."""
    p_won, p_lost, p_equal = shares
    most_lost = min(tasks, ceil(tasks * p_lost + 6 * sqrt(tasks * p_lost) + rule.look_every))
    by_bets = _boundary(most_lost, lambda won, lost: wealth_of({1.0: won, -1.0: lost}) >= rule.accepted_from)
    most_won = min(tasks, by_bets[-1] + rule.look_every)
    at_the_end = by_bets
    if rule.exact:
        by_signs = _boundary(most_lost, lambda won, lost: sign_test(won, lost) <= rule.exact * rule.error)
        at_the_end = list(map(min, by_bets, by_signs))
    none = [0.0] * (most_won + 1)
    # Probabilities by the number of tasks lost and won.
    ways = [[1.0, *none[1:]], *([*none] for _ in range(most_lost))]
    for count in range(1, tasks + 1):
        for lost in range(min(count, most_lost), -1, -1):
            row, fewer_lost = ways[lost], ways[lost - 1] if lost else none
            ways[lost] = [
                p_equal * same + p_lost * after_loss + p_won * after_win
                for same, after_loss, after_win in zip(row, fewer_lost, [0.0, *row[:-1]], strict=True)
            ]
        if count % rule.look_every and count < tasks:
            continue
        gives_up = count >= rule.given_up_from(tasks)
        for lost, row in enumerate(ways):
            enough = (at_the_end if count == tasks else by_bets)[lost]
            yield from ((row[won], (won, lost, count - won - lost)) for won in range(enough, len(row)) if row[won])
            first = lost + 1 if gives_up else 0
            ways[lost] = [way if first <= won < enough else 0.0 for won, way in enumerate(row)]


def _boundary(most_lost: int, is_enough: Callable[[int, int], bool]) -> Sequence[int]:
    """Return the smallest number of wins that is enough, for each number of losses up to `most_lost`."""
    boundary, won = [], 0
    for lost in range(most_lost + 1):
        while not is_enough(won, lost):
            won += 1
        boundary.append(won)
    return boundary
