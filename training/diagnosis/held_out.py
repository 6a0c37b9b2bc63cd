"""Success on held-out and on training scenarios, from the facts of a run."""

from collections.abc import Sequence
from math import exp
from statistics import fmean

from training.diagnosis.detector import AllFacts
from training.diagnosis.facts import Facts
from training.statistics.difference import difference
from training.statistics.sequential import Rule, evidence

_RULE = Rule()
_MOST_EVIDENCE = 1e200


def evaluations(facts: AllFacts) -> list[Facts]:
    """Return the iterations with sampled validation rollouts, in order."""
    return [each for each in facts if each.held_out and each.held_out.sampled]


def is_rising(facts: AllFacts) -> bool:
    """Return whether held-out success is shown to be higher than at first: the run's verdict would be `learned`."""
    seen = evaluations(facts)
    if len(seen) < 2:
        return False
    found = difference(_sampled(seen[0]), _sampled(seen[-1]))
    return found is not None and found.is_shown and found.mean > 0


def evidence_of_fall(seen: Sequence[Facts]) -> float:
    """Return the evidence that the last of these evaluations is worse than earlier ones, as the wealth of bets that
    starts at 1: against each earlier evaluation, paired by scenario, and averaged.

    The best one alone would be the wrong rival: choosing it selects luck, and every run falls from it.
    """
    latest = _sampled(seen[-1])
    return fmean(_wealth(_sampled(each), latest) for each in seen[:-1]) if len(seen) > 1 else 1.0


def training_success(each: Facts) -> float:
    """Return the success rate of an iteration's scored rollouts."""
    scored = sum(group.scored for group in each.groups)
    return sum(group.successes for group in each.groups) / scored if scored else 0.0


def _wealth(before: dict[str, float], after: dict[str, float]) -> float:
    shared = sorted(before.keys() & after.keys())
    found = evidence((before[id] - after[id] for id in shared), _RULE)
    return min(exp(min(found.better, 460.0)), _MOST_EVIDENCE)


def _sampled(each: Facts) -> dict[str, float]:
    return dict(each.held_out.sampled) if each.held_out else {}
