"""Remote rollouts: an agent runs elsewhere, works in one of our sessions, and reports its outcome."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from learnloop_service.environment.base import Episode, ReportedEpisode, Scenario
from learnloop_service.environment.first_line import last_line
from learnloop_service.training.budget import Reservation, Usage
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.rollout.agents.own_loop import AgentFailed
from learnloop_service.training.rollout.agents.sessions import (
    RolloutSession,
    RolloutSessions,
    SessionEnd,
    SessionLimits,
)
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.rollout.histories import record
from learnloop_service.training.rollout.model_calls import AnsweredCall, Sampling, cut_off
from learnloop_service.training.types import FailureKind, RolloutFailure

if TYPE_CHECKING:
    from art import Trajectory


@dataclass(frozen=True, slots=True)
class RolloutName:
    """The identity of a rollout within its run or evaluation. A worker that takes over finds the same session by it."""

    iteration: int
    entry: str
    """The rollout's name in the journal, or its slot in an evaluation."""


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """The work for one rollout."""

    name: RolloutName
    scenario: Scenario
    model: str
    """The checkpoint's name on its server."""
    sampling: Sampling
    seed: int
    max_turns: int
    """Maximum number of requests to the model."""
    timeout_s: float
    """Time limit in seconds, from the moment when an agent begins."""
    prompt: Mapping[str, str] = field(default_factory=dict)
    """The texts of the prompt by part, which the agent brings to its model; empty without one."""


@dataclass(frozen=True, slots=True)
class RemoteResult:
    """The result of a remote rollout: the agent's report, as ReportedEpisode accepts it, or the reason why there is
    none."""

    calls: Sequence[AnsweredCall]
    report: str | None
    failure: RolloutFailure | None = None
    malformed: str | None = None
    """Why the model is to blame for an agent that was lost; None if it is not."""
    seconds: float | None = None
    """How long the agent worked, without what it waited for before; None if it is not known."""


@runtime_checkable
class RemoteRollouts(Protocol):
    """Makes the rollouts of one run or evaluation elsewhere."""

    async def play(self, task: RemoteTask, reservation: Reservation) -> RemoteResult:
        """Have the task done.

        What its calls use is charged to the reservation. Cancellation leaves the session as it is, so that another
        worker can take over.

        Raises BudgetReached.
        """


async def play(
    remote: RemoteRollouts, task: RemoteTask, episode: Episode, trajectory: "Trajectory", reservation: Reservation
) -> RolloutFailure | None:
    """Have the episode played, and put its calls into the trajectory. Return why there is no outcome, or None if there
    is one."""
    clock = time.monotonic()
    played = await remote.play(task, reservation)
    record(trajectory, played.calls, task.prompt)
    used = sum((call.used for call in played.calls), Usage())
    trajectory.metrics |= {
        "turns": len(played.calls),
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "tools_s": time.monotonic() - clock if played.seconds is None else played.seconds,
    }
    if played.seconds is not None:
        trajectory.metrics["duration"] = played.seconds
    if played.malformed is not None:
        await off_loop(episode, episode.end, "malformed", played.malformed)
        return None
    if played.report is None:
        return played.failure
    if not played.calls:
        raise AgentFailed("the agent reported an outcome without an answer of its model")
    assert isinstance(episode, ReportedEpisode)
    try:
        await off_loop(episode, episode.report, played.report)
    except ValueError as bad:
        raise AgentFailed(f"the agent reported {bad}") from bad
    return None


class Dispatch(Protocol):
    """Brings a session's task to an agent."""

    def ttl_s(self, task: RemoteTask) -> float:
        """Return how long the session of a task stays open, in seconds."""

    async def finish(self, session: RolloutSession, task: RemoteTask) -> SessionEnd:
        """Have an agent work on the session until it ends. A worker that takes over calls this again."""


class SessionRollouts:
    """Rollouts in sessions. A worker that takes the run over finds each session again, with all its answers."""

    def __init__(
        self, sessions: RolloutSessions, dispatch: Dispatch, *, limited: bool = False, replaced: bool = False
    ) -> None:
        """If `limited`, there is a budget, and a session can use at most twice as much as the most expensive one so
        far. If `replaced`, the sessions put the prompt into the agent's requests, and the agent does not get it."""
        self._sessions = sessions
        self._dispatch = dispatch
        self._limited = limited
        self._replaced = replaced
        self._largest_usage = Usage()

    async def play(self, task: RemoteTask, reservation: Reservation) -> RemoteResult:
        session = await self._sessions.open(
            task.name.iteration,
            task.name.entry,
            model=task.model,
            step=_step_of(task.model),
            seed=task.seed,
            sampling=task.sampling,
            limits=SessionLimits(task.max_turns, await self._max_tokens(reservation)),
            ttl_s=self._dispatch.ttl_s(task),
        )
        ended = await self._dispatch.finish(session, replace(task, prompt={}) if self._replaced else task)
        calls = await self._sessions.calls(session.id)
        used = sum((call.used for call in calls), Usage())
        reservation.spend(used)
        self._largest_usage = max(self._largest_usage, used, key=lambda usage: usage.tokens)
        return replace(_result_of(calls, ended, task), seconds=ended.seconds)

    async def _max_tokens(self, reservation: Reservation) -> int | None:
        if not self._limited or not self._largest_usage.tokens:
            return None
        most = self._largest_usage + self._largest_usage
        await reservation.room_for(lambda: most)
        return most.tokens


def _result_of(calls: Sequence[AnsweredCall], ended: SessionEnd, task: RemoteTask) -> RemoteResult:
    outcome = ended.outcome
    if outcome is None:
        return RemoteResult(calls, None, RolloutFailure(FailureKind.TIMEOUT, f"no outcome within {task.timeout_s:g} s"))
    if not outcome.is_valid:
        why = outcome.reason or "no reason was given"
        if outcome.lost and (cut := cut_off(calls)):
            return RemoteResult(calls, None, malformed=f"{cut}; then {last_line(why)}")
        kind = FailureKind.AGENT_LOST if outcome.lost else FailureKind.AGENT
        return RemoteResult(calls, None, RolloutFailure(kind, f"the agent reported no outcome: {why}"))
    report = {name: value for name, value in asdict(outcome).items() if name != "lost" and value is not None}
    return RemoteResult(calls, json.dumps(report | {"facts": dict(outcome.facts or ())}))


def _step_of(model: str) -> int | None:
    try:
        return ModelName.parse(model).step
    except ValueError:  # a base model, or a model of another backend
        return None
