"""Rebuilds scenarios and rollouts from the rows of trajectories, as far as judging and scoring read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from learnloop_service.environment.base import Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.judges.base import Candidate
from learnloop_service.training.rollout.histories import transcript
from learnloop_service.training.types import FailureKind, Rollout, RolloutFailure


@dataclass
class _StoredTrajectory:
    """The part of `art.Trajectory` that judging reads and scoring reads and writes."""

    messages_and_choices: Sequence[Json]
    metrics: Mapping[str, float]
    additional_histories: Sequence[Json] = field(default=(), init=False)
    """Always empty: the messages include them, see `learnloop_service.training.rollout.histories.transcript`."""
    reward: float = 0.0


def scenario_of(row: Any) -> Scenario:
    """Return the scenario of a trajectory."""
    return Scenario(row.scenario_id, row.split, row.scenario["task"], row.scenario["reference"])


def candidate_of(row: Any) -> Candidate:
    """Return what a judge sees of a trajectory."""
    return Candidate(row.id, row.outcome, _messages(row))


def stored_rollout(scenario: Scenario, row: Any, messages: Sequence[Json] = ()) -> Rollout:
    """Return the rollout of a trajectory, with its verdict left out. `messages` are what a judge reads of it."""
    metrics = {name: getattr(row, name) for name in ("turns", "prompt_tokens", "completion_tokens")}
    failure = None if row.error is None else RolloutFailure(FailureKind(row.failure or FailureKind.OTHER), row.error)
    return Rollout(row.id, scenario, cast(Any, _StoredTrajectory(messages, metrics)), row.outcome, failure)


def judged_rollout(row: Any) -> Rollout:
    """Return a stored rollout with what a judge reads of it."""
    return stored_rollout(scenario_of(row), row, _messages(row))


def _messages(row: Any) -> Sequence[Json]:
    return transcript([row.messages, *(history["messages"] for history in row.additional_histories)])
