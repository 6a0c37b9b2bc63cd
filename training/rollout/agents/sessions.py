"""Sessions: how an agent that runs somewhere else works on a rollout.

The agent is given a base URL and a key, and keeps its own loop. Its calls are recorded durably; the session ends with
its outcome. Whoever drives the run finds the session of a rollout again, so that neither its own death nor the agent's
costs what was sampled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from environment.base import Json
from training.rollout.model_calls import AnsweredCall, Sampling


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one session; None: none."""

    max_calls: int | None = None
    """Requests of one start of the agent."""
    max_tokens: int | None = None
    """Of all prompts and replies that are sampled."""


@dataclass(frozen=True, slots=True)
class RolloutSession:
    """What an agent needs to work on a rollout."""

    id: str
    path: str
    """Below the service's own URL; an OpenAI client's base URL ends with it."""
    attempt: int
    """Which start of the agent this is, from 1."""
    api_key: str | None = field(repr=False)
    """None: the session was there before, and its key is only known to who opened it: `restart` gives a new one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended. Without a reward, parts or an output it is invalid, which is not zero: `reason` says why."""

    reward: float | None = None
    parts: Mapping[str, float] | None = None
    output: Json = None
    """Text, or an object, for a judge to read."""
    reason: str | None = None

    @property
    def is_valid(self) -> bool:
        """Whether there is anything to learn from."""
        return self.reward is not None or self.parts is not None or self.output is not None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A session that is over; `outcome` is None if nobody ended it in time."""

    outcome: Outcome | None


class RolloutSessions(Protocol):
    """The sessions of one run. Methods may be called on any event loop.

    They raise what says that the run is no longer ours.
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
        """The session of the rollout of that name: a new one, or the one that there is, whatever its state.

        `model` is the endpoint's name of the checkpoint. An open one that was found stays open for `ttl_s` from now.
        """

    async def restart(self, session_id: str) -> RolloutSession:
        """Begin the next attempt: the agent's next start is given the recorded answers. Keys of earlier ones end.

        Raises SessionOver.
        """

    async def ended(self, session_id: str) -> SessionEnd:
        """Wait for the end of the session."""

    async def end(self, session_id: str, outcome: Outcome) -> SessionEnd:
        """End the session, unless it is over; returns how it ended."""

    async def calls(self, session_id: str) -> list[AnsweredCall]:
        """The answered calls of the last attempt, in the order in which it made them."""


class SessionOver(Exception):
    """The session has ended or expired."""
