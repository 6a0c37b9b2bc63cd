"""How much each rollout counts in the figures of its iteration, and the groups that replace others."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from environment.base import Scenario
from environment.scenario_order import different
from training.types import Group, ScoredRollout


def weight(rollout: ScoredRollout) -> float:
    """Return the weight of a rollout in figures, which estimate what the policy does on scheduled scenarios.

    The inverse of the inclusion probability makes a weighted sum unbiased (Horvitz and Thompson, 1952). A replacement
    is left out although its inverse would do as well: it is made because another group taught nothing, so counting it
    like the others would pull every figure towards what such iterations show, and counting it by its inverse would let
    one replacement weigh as much as all scheduled groups together.
    """
    return 0.0 if rollout.replaces is not None else 1.0 / rollout.inclusion


def is_replacement(group: Group) -> bool:
    """Return whether the group was made because another one taught nothing."""
    return any(rollout.replaces is not None for rollout in group.rollouts)


def taught_nothing(groups: Iterable[Group]) -> list[Group]:
    """Return the groups that can be replaced: those in which all rewards are equal."""
    return [group for group in groups if group.skipped == "no_signal"]


def others(reserve: Sequence[Scenario], groups: Iterable[Group]) -> list[Scenario]:
    """Return the scenarios of the reserve that the groups did not attempt, each once."""
    attempted = {group.scenario.id for group in groups}
    return [scenario for scenario in different(reserve) if scenario.id not in attempted]


def replacement(made: Group, replaced: Group, inclusion: float) -> Group:
    """Return a group that was made with this probability in place of another one."""
    mark = {"inclusion": inclusion, "replaces": replaced.scenario.id}
    return replace(made, rollouts=tuple(replace(each, **mark) for each in made.rollouts))  # type: ignore[arg-type]
