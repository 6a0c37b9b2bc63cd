"""Sessions, in which an agent that runs elsewhere works on a rollout.

The agent gets a base URL and a key, and keeps its own loop. Its calls are recorded durably, and the session ends with
its outcome. A worker that takes over the run finds the session of a rollout again, so nothing that was sampled is lost
if the worker or the agent dies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from learnloop_service.environment.base import Json
from learnloop_service.training.rollout.model_calls import AnsweredCall, Sampling


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one session. None means no limit."""

    max_calls: int | None = None
    """Maximum number of requests in one attempt."""
    max_tokens: int | None = None
    """Maximum number of tokens of all prompts and sampled replies together."""


@dataclass(frozen=True, slots=True)
class RolloutSession:
    """The access to a rollout's model that an agent needs."""

    id: str
    path: str
    """Path below the service's URL. An OpenAI client's base URL ends with it."""
    attempt: int
    """Number of the agent's current attempt, from 1."""
    api_key: str | None = field(repr=False)
    """The session's key. None if the session existed before, because only its opener knows the key; `restart` creates a
    new one."""


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """How a session ended. Without reward, parts and output the outcome is invalid, which is not the same as a reward
    of zero; `reason` then says why."""

    reward: float | None = None
    parts: Mapping[str, float] | None = None
    output: Json = None
    """Text or an object for a judge to read."""
    reason: str | None = None
    facts: list[list[Json]] | None = None
    """Pairs of a milestone's name and whether it was reached, in the order in which a success reaches them."""
    lost: bool = False
    """Whether the agent's process or server was lost, so that the agent itself could report nothing."""

    @property
    def is_valid(self) -> bool:
        """Whether the outcome contains anything to learn from."""
        return self.reward is not None or self.parts is not None or self.output is not None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A session that is over. `outcome` is None if it was not ended in time."""

    outcome: SessionOutcome | None
    seconds: float | None = None
    """How long its last attempt took, if that is known."""


class RolloutSessions(Protocol):
    """The sessions of one run. Methods can be called on any event loop.

    They raise the error that says that the run's lease is lost.
    """

    async def open(
        self,
        iteration: int,
        entry: str,
        *,
        model: str,
        step: int | None,
        seed: int,
        sampling: Sampling,
        limits: SessionLimits,
        ttl_s: float,
    ) -> RolloutSession:
        """Open a session for the named rollout, or return the existing one, whatever its state.

        `model` is the endpoint's name of the checkpoint. An existing open session stays open for `ttl_s` from now.
        """

    async def restart(self, session_id: str) -> RolloutSession:
        """Begin the next attempt, which gets the recorded answers again. Keys of earlier attempts become invalid.

        Raises SessionHasEnded.
        """

    async def ended(self, session_id: str) -> SessionEnd:
        """Wait for the end of the session."""

    async def end(self, session_id: str, attempt: int, outcome: SessionOutcome) -> SessionEnd:
        """End the session with the outcome of an attempt, and return how it ended. If the session is over, or another
        attempt has begun, wait for its end instead."""

    async def calls(self, session_id: str) -> list[AnsweredCall]:
        """Return the answered calls of the last attempt, in the order in which it made them."""


class SessionHasEnded(Exception):
    """The session has ended or expired."""
