"""Success on held-out and on training scenarios, from the facts of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp
from statistics import fmean

from learnloop_service.training.diagnosis.detector import AllFacts
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.statistics.difference import difference
from learnloop_service.training.statistics.sequential import Bets, Rule

_RULE = Rule()
_RIVALS = 16
"""Number of earlier evaluations that the last one is compared with, so that long runs stay cheap to diagnose."""
_MOST = 460.0
"""Largest logarithm of a wealth, so that it can be averaged."""


def evaluations(facts: AllFacts) -> list[Facts]:
    """Return the iterations with sampled validation rollouts, in order."""
    return [iteration for iteration in facts if iteration.held_out and iteration.held_out.sampled]


def is_rising(facts: AllFacts) -> bool:
    """Return whether held-out success is shown to be higher than at first: the run's verdict would be `learned`."""
    evaluated = evaluations(facts)
    return len(evaluated) > 1 and _has_risen(
        tuple(_sampled(evaluated[0]).items()), tuple(_sampled(evaluated[-1]).items())
    )


@lru_cache(1_024)  # a run is diagnosed after each iteration, and a bootstrap takes 8 ms
def _has_risen(before: tuple[tuple[str, float], ...], after: tuple[tuple[str, float], ...]) -> bool:
    change = difference(dict(before), dict(after))
    return change is not None and change.is_shown and change.mean > 0


def evidence_of_fall(evaluated: Sequence[Facts]) -> float:
    """Return the evidence that the last of these evaluations is worse than earlier ones, as the wealth of bets that
    starts at 1: against at most 16 earlier evaluations, evenly spread, paired by scenario, and averaged.

    The best one alone would be the wrong rival: choosing it selects luck, and every run falls from it.
    """
    earlier, latest = evaluated[:-1], _sampled(evaluated[-1])
    rivals = [earlier[number * len(earlier) // _RIVALS] for number in range(_RIVALS)] if earlier[_RIVALS:] else earlier
    return fmean(_wealth(_sampled(rival), latest) for rival in rivals) if rivals else 1.0


def training_success(iteration: Facts) -> float:
    """Return the weighted success rate of an iteration's scored rollouts."""
    scored = sum(group.scored * group.represents for group in iteration.groups)
    return sum(group.successes * group.represents for group in iteration.groups) / scored if scored else 0.0


def _wealth(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    differences = Counter(before[id] - after[id] for id in before.keys() & after.keys())
    bets = Bets(_RULE)
    for change, scenarios in sorted(differences.items()):
        bets.add(change, scenarios)
    return exp(min(bets.evidence().better, _MOST))


def _sampled(iteration: Facts) -> Mapping[str, float]:
    return iteration.held_out.sampled if iteration.held_out else {}
