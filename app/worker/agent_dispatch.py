"""Sends the tasks of a run to an agent that runs elsewhere: posts them to a URL, or offers them to be claimed."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import httpx
import structlog

from learnloop.errors import why_unreachable
from learnloop.outcome import BadOutcome, ordered, parse_outcome
from learnloop_service.app.agent_sessions.tasks import UNCLAIMED, AgentTasks
from learnloop_service.app.security.address_guard import AddressGuard, AddressRefused, guarded_transport
from learnloop_service.app.security.webhook_signing import signed_headers
from learnloop_service.app.worker.driven import query
from learnloop_service.environment.bounded_http import AnswerLimits, AnswerRefused, BoundedTransport
from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.agents.remote import RemoteTask
from learnloop_service.training.rollout.agents.sessions import (
    RolloutSession,
    RolloutSessions,
    SessionEnd,
    SessionHasEnded,
    SessionOutcome,
)

DELAYS_S = (0.5, 2.0)
"""Delays before a task is posted again. After the last one its rollout fails."""
_RETRYABLE_STATUSES = (408, 425, 429)
_ANSWER = AnswerLimits(2_000_000)

log = structlog.get_logger(__name__)


def task_document(task: RemoteTask, run_id: str | None) -> dict[str, Json]:
    """Return the description of a task for the agent, without the session."""
    prompt: dict[str, Json] = {"prompt": dict(task.prompt)} if task.prompt else {}
    return prompt | {
        "task": dict(task.scenario.task),
        "scenario_id": task.scenario.id,
        "split": task.scenario.split,
        "run_id": run_id,
        "iteration": task.name.iteration,
        "max_turns": task.max_turns,
    }


@dataclass(frozen=True, slots=True)
class TaskReceiver:
    """The runner that tasks are posted to."""

    url: str
    secrets: Sequence[str] = field(default=(), repr=False)
    """Secrets that each request is signed with."""


class _Refused(Exception):
    """Raised when the runner did not take the task. The message says why."""

    def __init__(self, reason: str, *, again: bool, lost: bool = False) -> None:
        """`again` means that a retry can succeed; `lost` that the runner was away or overloaded."""
        super().__init__(reason)
        self.again = again
        self.lost = lost


@dataclass(frozen=True)
class PushDispatch:
    """Posts each task. The runner replies 200 with the outcome, or 202 and sends the outcome to the session later."""

    database: RolloutSessions
    guard: AddressGuard
    receiver: TaskReceiver
    service_url: str
    """URL at which the agent reaches us."""
    run_id: str | None
    now: Callable[[], datetime]

    def ttl_s(self, task: RemoteTask) -> float:
        return task.timeout_s

    async def finish(self, session: RolloutSession, task: RemoteTask) -> SessionEnd:
        ended = asyncio.ensure_future(self.database.ended(session.id))
        try:
            posting = asyncio.ensure_future(self._post_with_retries(session, task))
            try:
                await asyncio.wait({ended, posting}, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done() and (reported := posting.result()) is not None:
                    return await self.database.end(session.id, *reported)
            finally:
                posting.cancel()
                await asyncio.wait({posting})
            return await ended
        finally:
            ended.cancel()

    async def _post_with_retries(self, session: RolloutSession, task: RemoteTask) -> tuple[int, SessionOutcome] | None:
        """Post the task, with retries. Returns its outcome and the attempt that has it, or None if the caller must wait
        for the session's end."""
        delays = iter(DELAYS_S)
        while True:
            if session.api_key is None:  # this worker or the previous one has already posted the task
                try:
                    session = await self.database.restart(session.id)
                except SessionHasEnded:
                    return None
            try:
                outcome = await self._post(session, task)
                return None if outcome is None else (session.attempt, outcome)
            except _Refused as refused:
                delay_s = next(delays, None)
                log.info("a runner did not take a task", session_id=session.id, reason=str(refused))
                if not refused.again or delay_s is None:
                    return session.attempt, SessionOutcome(reason=str(refused), lost=refused.lost)
            await asyncio.sleep(delay_s)
            session = RolloutSession(session.id, session.path, session.attempt, None)

    async def _post(self, session: RolloutSession, task: RemoteTask) -> SessionOutcome | None:
        """Post the task once. Returns None if the session will receive the outcome. Raises _Refused."""
        now = self.now()
        access = {"id": session.id, "base_url": f"{self.service_url}{session.path}", "api_key": session.api_key}
        document = {
            "session": access | {"model": task.model},
            **task_document(task, self.run_id),
            "attempt": session.attempt,
            "deadline": (now + timedelta(seconds=task.timeout_s)).isoformat(),
        }
        body = json.dumps(document)
        headers = {"content-type": "application/json", "user-agent": "learnloop"}
        headers |= signed_headers(f"{session.id}.{session.attempt}", now, body, self.receiver.secrets)
        # The session's deadline ends a request that hangs.
        limits = httpx.Timeout(None, connect=15.0, write=15.0)
        transport = BoundedTransport(guarded_transport(self.guard), _ANSWER)
        try:
            async with httpx.AsyncClient(transport=transport, timeout=limits, follow_redirects=False) as client:
                response = await client.post(self.receiver.url, content=body.encode(), headers=headers)
            return _read(response.status_code, response.content)
        except AnswerRefused as error:
            raise _Refused(f"the runner's answer cannot be read: {error}", again=False) from error
        except AddressRefused as error:
            raise _Refused(f"the runner's URL may not be used: {error}", again=False) from error
        except httpx.HTTPError as error:
            reason = f"the runner cannot be reached: {why_unreachable(error)}"
            raise _Refused(reason, again=True, lost=True) from error


def _read(status: int, content: bytes) -> SessionOutcome | None:
    """Return the outcome in the reply, or None if it comes later. Raises _Refused."""
    if status == httpx.codes.ACCEPTED:
        return None
    if status != httpx.codes.OK:
        answer = content[:200].decode("utf-8", "replace")
        away = status >= 500 or status in _RETRYABLE_STATUSES
        raise _Refused(f"the runner answered {status}: {answer!r}", again=away, lost=away)
    try:
        outcome = parse_outcome(json.loads(content))
    except BadOutcome as error:
        raise _Refused(f"the runner's outcome is invalid: {error}", again=True) from error
    except (ValueError, RecursionError) as error:
        raise _Refused(f"the runner's answer is no outcome: {error}", again=True) from error
    facts = ordered(outcome.facts) or None
    return SessionOutcome(outcome.reward, outcome.parts or None, outcome.output, outcome.reason, facts)


@dataclass(frozen=True)
class PullDispatch:
    """Offers each task to agents that ask for one."""

    database: RolloutSessions
    tasks: AgentTasks
    main_loop: asyncio.AbstractEventLoop
    project: str
    run_id: str | None

    def ttl_s(self, task: RemoteTask) -> float:
        """Return how long a task can stay unclaimed. Its own time limit starts when it is claimed."""
        return UNCLAIMED.total_seconds()

    async def finish(self, session: RolloutSession, task: RemoteTask) -> SessionEnd:
        document = task_document(task, self.run_id)
        offered = (session.id, self.project, self.run_id, document, task.timeout_s)
        await query(self.main_loop, lambda: self.tasks.offer(*offered))
        ended = await self.database.ended(session.id)
        with suppress(Exception):  # a leftover row is deleted with its session
            return replace(ended, seconds=await query(self.main_loop, lambda: self.tasks.withdraw(session.id)))
        return ended
