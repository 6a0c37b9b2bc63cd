"""How much each rollout counts in the figures of its iteration, and the groups that replace others."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from learnloop_service.environment.base import Scenario
from learnloop_service.environment.scenario_order import different
from learnloop_service.training.types import Group, ScoredRollout


def weight(rollout: ScoredRollout) -> float:
    """Return the weight of a rollout in figures, which estimate what the policy does on all scenarios of the run.

    The inverse of the inclusion probability makes a weighted sum unbiased (Horvitz and Thompson, 1952). The loss does
    not weigh: scenarios are drawn by what they teach so that more of the gradient comes from them, and weights would
    take that back and let one group decide a step. A replacement is left out although its inverse would do as well: it
    is made because an earlier group taught nothing, so counting it like the others would let some iterations weigh up
    to twice as much as others, and counting it by its inverse would let one replacement weigh as much as all scheduled
    groups together.
    """
    return 0.0 if rollout.replaces is not None else 1.0 / rollout.inclusion


def is_replacement(group: Group) -> bool:
    """Return whether the group was made because an earlier one taught nothing."""
    return any(rollout.replaces is not None for rollout in group.rollouts)


def taught_nothing(groups: Iterable[Group]) -> tuple[str, ...]:
    """Return the scenarios of the groups that can be replaced: those that the schedule drew, and in which all rewards
    are equal."""
    idle = (group for group in groups if group.skipped == "no_signal" and not is_replacement(group))
    return tuple(group.scenario.id for group in idle)


def others(reserve: Sequence[Scenario], scheduled: Iterable[Scenario]) -> list[Scenario]:
    """Return the scenarios of the reserve that are not scheduled, each once."""
    attempted = {scenario.id for scenario in scheduled}
    return [scenario for scenario in different(reserve) if scenario.id not in attempted]


def included(group: Group, inclusion: float, replaces: str | None = None) -> Group:
    """Return the group as one that was made with this probability, perhaps in place of another scenario's."""
    rollouts = tuple(replace(rollout, inclusion=inclusion, replaces=replaces) for rollout in group.rollouts)
    return replace(group, rollouts=rollouts)


def whole(counts: Iterable[float]) -> list[int]:
    """Return whole numbers close to weighted counts, which have the same sum up to rounding."""
    sums = [0, *map(round, itertools.accumulate(counts))]
    return [after - before for before, after in itertools.pairwise(sums)]
