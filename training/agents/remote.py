"""Rollouts that are made elsewhere: an agent works against a session of ours, and reports what came of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from environment.base import Episode, ReportedEpisode, Scenario
from training.agents.own_loop import AgentFailed
from training.budget import Reservation, Usage
from training.histories import record
from training.model_calls import AnsweredCall, Sampling
from training.types import Failure

if TYPE_CHECKING:
    from art import Trajectory


@dataclass(frozen=True, slots=True)
class RolloutName:
    """A rollout of a run or an evaluation, whoever makes it: whoever takes that over goes on with the same session."""

    iteration: int
    entry: str
    """The rollout's name in the journal, or its slot in an evaluation."""


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """What is to be done for one rollout."""

    name: RolloutName
    scenario: Scenario
    model: str
    """The checkpoint, as its server knows it."""
    sampling: Sampling
    seed: int
    max_turns: int
    """Requests to the model."""
    timeout_s: float
    """From the moment when an agent begins."""


@dataclass(frozen=True, slots=True)
class Played:
    """What became of it: the agent's report (as a ReportedEpisode takes it), or why there is none."""

    calls: Sequence[AnsweredCall]
    report: str | None
    failure: Failure | None = None


@runtime_checkable
class RemoteRollouts(Protocol):
    """Where the rollouts of one run or evaluation are made."""

    async def play(self, task: RemoteTask, reservation: Reservation) -> Played:
        """Have the task done. What its calls use is charged to the reservation as they are answered. Cancellation
        leaves the session as it is, for whoever takes over.

        Raises BudgetReached.
        """


async def play(
    remote: RemoteRollouts, task: RemoteTask, episode: Episode, trajectory: "Trajectory", reservation: Reservation
) -> Failure | None:
    """Have the episode played, and put its calls into the trajectory. Returns why there is no outcome, if so."""
    clock = time.monotonic()
    played = await remote.play(task, reservation)
    record(trajectory, played.calls)
    used = sum((call.used for call in played.calls), Usage())
    trajectory.metrics |= {
        "turns": len(played.calls),
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "tools_s": time.monotonic() - clock,
    }
    if played.report is None:
        return played.failure
    if not played.calls:
        raise AgentFailed("the agent reported an outcome without an answer of its model")
    assert isinstance(episode, ReportedEpisode)
    try:
        episode.report(played.report)
    except ValueError as bad:
        raise AgentFailed(f"the agent reported {bad}") from bad
    return None
