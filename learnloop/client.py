"""The sync and the async client; both perform the same operations."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Self, Unpack

import httpx

from learnloop import operations
from learnloop.errors import LearnloopError
from learnloop.http_settings import http_settings
from learnloop.steps import AsyncSteps, SyncSteps
from learnloop.types import (
    Accepted,
    Answer,
    Demonstration,
    Demonstrations,
    Event,
    FeedbackEvent,
    FeedbackTaken,
    FeedbackType,
    LearnLoopRequest,
    Outcome,
    RunState,
    SessionAccess,
    SessionRequest,
    SessionState,
    Task,
)

_TIMEOUT_S = 60.0


class Learnloop:
    """A Learnloop service. Its methods raise the errors of `learnloop.errors`."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`base_url` and `api_key` default to LEARNLOOP_URL and LEARNLOOP_API_KEY. `timeout_s` is httpx's. Raises
        ValueError for a bad URL."""
        self._steps = SyncSteps(httpx.Client(**http_settings(base_url, api_key, timeout_s), transport=transport))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._steps.http.close()

    def learn_loop(self, *, idempotency_key: str | None = None, **request: Unpack[LearnLoopRequest]) -> "Run":
        """Start a run with the fields of `POST /learn-loop`. The same key starts it only once."""
        accepted = self._steps.run(operations.learn_loop(request, idempotency_key))
        return Run(self._steps, accepted["run_id"])

    def run(self, run_id: str) -> "Run":
        """Return a run by its id, without a request."""
        return Run(self._steps, run_id)

    def store_demonstrations(
        self, name: str, conversations: Path | Iterable[Demonstration], *, idempotency_key: str | None = None
    ) -> Demonstrations:
        """Store conversations to imitate, or a JSON Lines file of them, for a run's `warm_start`. Each has `messages`
        and, if it calls any, its `tools`. Storing the same ones under the same name again creates no new version."""
        return self._steps.run(operations.store_demonstrations(name, conversations, idempotency_key))

    def ask(self, model: str, *, idempotency_key: str | None = None, **task: Unpack[Task]) -> Answer:
        """Give a model a task: a base model, `PROJECT/NAME`, `PROJECT/NAME@STEP` or a promoted name."""
        return self._steps.run(operations.ask(task, idempotency_key, model=model))

    def feedback(self, type: FeedbackType, **event: Unpack[FeedbackEvent]) -> FeedbackTaken:
        """Report an opinion on a session (`session_id`), or what happened to an email. Sent again with the same
        `event_id`, it counts once."""
        return self._steps.run(operations.feedback(type, event))

    @contextmanager
    def session(self, model: str, **request: Unpack[SessionRequest]) -> Iterator["Session"]:
        """Open a session for an agent that has its own loop: give it the session's `base_url` and `api_key`.

        If the block ends without an outcome, or raises, the session ends without one and that is the reason: it counts
        for nothing. An interrupted agent leaves the session open; when started again, it continues there.
        """
        session = Session(self._steps, self._steps.run(operations.open_session(model, request)))
        try:
            yield session
        except Exception as error:
            with suppress(LearnloopError):  # The agent's own error matters more.
                session.leave(error)
            raise
        session.leave()


class Run:
    """A run of the service."""

    def __init__(self, steps: SyncSteps, run_id: str) -> None:
        self._steps = steps
        self.id = run_id

    def state(self) -> RunState:
        """Return its current state."""
        return self._steps.run(operations.run_state(self.id))

    def wait(self, timeout_s: float | None = None) -> RunState:
        """Wait until the run is completed, failed, cancelled or paused; `status` says which. Raises WaitTimeout."""
        return self._steps.run(operations.wait(self.id, timeout_s))

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield its events after number `after` as they happen until it has ended, even if the connection is lost."""
        return self._steps.iterate(operations.events(self.id, after))

    def ask(self, *, idempotency_key: str | None = None, **task: Unpack[Task]) -> Answer:
        """Give its agent a task; by default its best checkpoint is used."""
        return self._steps.run(operations.ask(task, idempotency_key, run_id=self.id))

    def store_demonstrations(
        self, name: str, *, min_reward: float, per_scenario: int = 1, idempotency_key: str | None = None
    ) -> Demonstrations:
        """Store its best rollouts of training scenarios, at most `per_scenario` of each, as demonstrations (rejection
        sampling), once it has ended."""
        operation = operations.store_best_rollouts(self.id, name, min_reward, per_scenario, idempotency_key)
        return self._steps.run(operation)

    def cancel(self) -> Accepted:
        """Cancel the run."""
        return self._steps.run(operations.cancel(self.id))


class Session:
    """An open session."""

    def __init__(self, steps: SyncSteps, access: SessionAccess) -> None:
        self._steps = steps
        self.id = access["id"]
        self.base_url = access["base_url"]
        """Base URL for the agent's client, in place of OpenAI's or Anthropic's."""
        self.api_key = access["api_key"]
        self.expires_at = access["expires_at"]
        self._ended = False

    def state(self) -> SessionState:
        """Return its current state."""
        return self._steps.run(operations.session_state(self.id))

    def outcome(self, **outcome: Unpack[Outcome]) -> SessionState:
        """End it with a reward, parts of it, or an output for a judge, or with the reason why there is none."""
        ended = self._steps.run(operations.end_session(self.id, outcome))
        self._ended = True
        return ended

    def leave(self, error: BaseException | None = None) -> None:
        """End it without an outcome, unless it has one."""
        if not self._ended:
            self.outcome(**operations.unfinished(error))


class AsyncLearnloop:
    """A Learnloop service, for asyncio. Its methods raise the errors of `learnloop.errors`."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`base_url` and `api_key` default to LEARNLOOP_URL and LEARNLOOP_API_KEY. `timeout_s` is httpx's. Raises
        ValueError for a bad URL."""
        self._steps = AsyncSteps(httpx.AsyncClient(**http_settings(base_url, api_key, timeout_s), transport=transport))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._steps.http.aclose()

    async def learn_loop(
        self, *, idempotency_key: str | None = None, **request: Unpack[LearnLoopRequest]
    ) -> "AsyncRun":
        """Start a run with the fields of `POST /learn-loop`. The same key starts it only once."""
        accepted = await self._steps.run(operations.learn_loop(request, idempotency_key))
        return AsyncRun(self._steps, accepted["run_id"])

    def run(self, run_id: str) -> "AsyncRun":
        """Return a run by its id, without a request."""
        return AsyncRun(self._steps, run_id)

    async def store_demonstrations(
        self, name: str, conversations: Path | Iterable[Demonstration], *, idempotency_key: str | None = None
    ) -> Demonstrations:
        """Store conversations to imitate, or a JSON Lines file of them, for a run's `warm_start`. Each has `messages`
        and, if it calls any, its `tools`. Storing the same ones under the same name again creates no new version."""
        return await self._steps.run(operations.store_demonstrations(name, conversations, idempotency_key))

    async def ask(self, model: str, *, idempotency_key: str | None = None, **task: Unpack[Task]) -> Answer:
        """Give a model a task: a base model, `PROJECT/NAME`, `PROJECT/NAME@STEP` or a promoted name."""
        return await self._steps.run(operations.ask(task, idempotency_key, model=model))

    async def feedback(self, type: FeedbackType, **event: Unpack[FeedbackEvent]) -> FeedbackTaken:
        """Report an opinion on a session (`session_id`), or what happened to an email. Sent again with the same
        `event_id`, it counts once."""
        return await self._steps.run(operations.feedback(type, event))

    @asynccontextmanager
    async def session(self, model: str, **request: Unpack[SessionRequest]) -> AsyncIterator["AsyncSession"]:
        """Open a session for an agent that has its own loop: give it the session's `base_url` and `api_key`.

        If the block ends without an outcome, or raises, the session ends without one and that is the reason: it counts
        for nothing. An interrupted agent leaves the session open; when started again, it continues there.
        """
        session = AsyncSession(self._steps, await self._steps.run(operations.open_session(model, request)))
        try:
            yield session
        except Exception as error:
            with suppress(LearnloopError):  # The agent's own error matters more.
                await session.leave(error)
            raise
        await session.leave()


class AsyncRun:
    """A run of the service, for asyncio."""

    def __init__(self, steps: AsyncSteps, run_id: str) -> None:
        self._steps = steps
        self.id = run_id

    async def state(self) -> RunState:
        """Return its current state."""
        return await self._steps.run(operations.run_state(self.id))

    async def wait(self, timeout_s: float | None = None) -> RunState:
        """Wait until the run is completed, failed, cancelled or paused; `status` says which. Raises WaitTimeout."""
        return await self._steps.run(operations.wait(self.id, timeout_s))

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield its events after number `after` as they happen until it has ended, even if the connection is lost."""
        return self._steps.iterate(operations.events(self.id, after))

    async def ask(self, *, idempotency_key: str | None = None, **task: Unpack[Task]) -> Answer:
        """Give its agent a task; by default its best checkpoint is used."""
        return await self._steps.run(operations.ask(task, idempotency_key, run_id=self.id))

    async def store_demonstrations(
        self, name: str, *, min_reward: float, per_scenario: int = 1, idempotency_key: str | None = None
    ) -> Demonstrations:
        """Store its best rollouts of training scenarios, at most `per_scenario` of each, as demonstrations (rejection
        sampling), once it has ended."""
        operation = operations.store_best_rollouts(self.id, name, min_reward, per_scenario, idempotency_key)
        return await self._steps.run(operation)

    async def cancel(self) -> Accepted:
        """Cancel the run."""
        return await self._steps.run(operations.cancel(self.id))


class AsyncSession:
    """An open session, for asyncio."""

    def __init__(self, steps: AsyncSteps, access: SessionAccess) -> None:
        self._steps = steps
        self.id = access["id"]
        self.base_url = access["base_url"]
        """Base URL for the agent's client, in place of OpenAI's or Anthropic's."""
        self.api_key = access["api_key"]
        self.expires_at = access["expires_at"]
        self._ended = False

    async def state(self) -> SessionState:
        """Return its current state."""
        return await self._steps.run(operations.session_state(self.id))

    async def outcome(self, **outcome: Unpack[Outcome]) -> SessionState:
        """End it with a reward, parts of it, or an output for a judge, or with the reason why there is none."""
        ended = await self._steps.run(operations.end_session(self.id, outcome))
        self._ended = True
        return ended

    async def leave(self, error: BaseException | None = None) -> None:
        """End it without an outcome, unless it has one."""
        if not self._ended:
            await self.outcome(**operations.unfinished(error))
