"""Tasks for agents that fetch their work: all SQL about claiming them. All times are the database's.

A claim is a lease whose fencing token is the session's attempt, which each claim begins. While the lease is renewed, no
other worker gets the task. If it expires, the next claim begins another attempt of the same session, with a new key;
the answers that were recorded before are replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.agent_sessions.store import AgentSessions, ClaimLost, end_row
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.claims.lease import lapsed, until
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, OpenAgentTask, SessionCall
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.errors import NotFound
from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.agents.sessions import SessionOutcome

MAX_LOSSES = 3
"""Number of losses in a row after which a task is given up. That many are not by chance."""
UNCLAIMED = timedelta(days=1)
"""How long a task waits to be claimed."""
_OPEN = AgentSession.state == AgentSessionState.OPEN


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A claimed task and the session to work on it."""

    session_id: str
    api_key: str = field(repr=False)
    model: str
    task: Mapping[str, Json]
    run_id: str | None
    attempt: int
    """Number of the session's attempt that the claim began, from 1."""
    deadline: datetime
    lease_until: datetime


class AgentTasks:
    """The tasks in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = AgentSessions(database)

    async def offer(
        self, session_id: str, project: str, run_id: str | None, task: Mapping[str, Json], timeout_s: float
    ) -> None:
        """Offer the task to workers, unless it was offered before. An agent that is already working on it keeps its
        deadline."""
        row = {"session_id": session_id, "project": project, "run_id": run_id, "task": task, "timeout_s": timeout_s}
        keep_deadline = (
            update(AgentSession)
            .where(AgentSession.id == session_id, _OPEN, OpenAgentTask.session_id == AgentSession.id, _is_held())
            .values(expires_at=OpenAgentTask.deadline)
            .execution_options(synchronize_session=False)
        )
        async with self._database.begin() as tx:
            await tx.execute(insert(OpenAgentTask).values(row).on_conflict_do_nothing())
            await tx.execute(keep_deadline)

    async def withdraw(self, session_id: str) -> float | None:
        """Remove the task, because its session has ended. Returns the seconds since it was claimed last; None if it
        never was, or if it was removed before."""
        ended = select(AgentSession.ended_at).where(AgentSession.id == OpenAgentTask.session_id).scalar_subquery()
        removed = delete(OpenAgentTask).where(OpenAgentTask.session_id == session_id)
        async with self._database.begin() as tx:
            row = (
                await tx.execute(removed.returning(ended, OpenAgentTask.deadline, OpenAgentTask.timeout_s))
            ).one_or_none()
        ended_at, deadline, timeout_s = row or (None, None, 0.0)
        if ended_at is None or deadline is None:
            return None
        return max(0.0, timeout_s - (deadline - ended_at).total_seconds())

    async def claim(self, of: Caller, run_id: str | None, worker: str, lease_s: float) -> ClaimedTask | None:
        """Claim the oldest free task, or return None if there is none."""
        conditions = [] if of.project is None else [OpenAgentTask.project == of.project]
        if run_id is not None:
            conditions.append(OpenAgentTask.run_id == run_id)
        async with self._database.begin() as tx:
            await self._give_up(tx, *conditions)
            task = await self._next(tx, *conditions)
            return None if task is None else await self._claimed(tx, task, worker, lease_s)

    async def _next(self, tx: AsyncSession, *conditions: ColumnElement[bool]) -> OpenAgentTask | None:
        query = (
            select(OpenAgentTask)
            .join(AgentSession, AgentSession.id == OpenAgentTask.session_id)
            .where(*conditions, _OPEN, AgentSession.expires_at > func.clock_timestamp(), ~_is_held())
            .order_by(OpenAgentTask.session_id)
            .limit(1)
            .with_for_update(of=OpenAgentTask, skip_locked=True)
        )
        return (await tx.execute(query)).scalar_one_or_none()

    async def _claimed(self, tx: AsyncSession, task: OpenAgentTask, worker: str, lease_s: float) -> ClaimedTask:
        losses = task.losses if task.lease_until is None else await _losses(tx, task)
        values = {"worker": worker, "lease_until": until(lease_s), "deadline": until(task.timeout_s)}
        of_task, unclaimed = AgentSession.id == task.session_id, task.deadline is None
        opened = await self._store.restart_in(tx, of_task, first_unused=unclaimed)
        assert opened.key is not None
        claim = (
            update(OpenAgentTask)
            .where(OpenAgentTask.session_id == task.session_id)
            .values(losses=losses, **values)
            .returning(OpenAgentTask.deadline, OpenAgentTask.lease_until)
        )
        deadline, lease_until = (await tx.execute(claim)).one()
        assert deadline is not None
        assert lease_until is not None
        opened.row.expires_at = deadline
        await tx.flush()
        return ClaimedTask(
            task.session_id,
            opened.key,
            opened.row.model,
            task.task,
            task.run_id,
            opened.row.attempt,
            deadline,
            lease_until,
        )

    async def _give_up(self, tx: AsyncSession, *conditions: ColumnElement[bool]) -> None:
        """End the sessions of tasks that were lost too often. They get a reason instead of a result."""
        query = (
            select(OpenAgentTask)
            .join(AgentSession, AgentSession.id == OpenAgentTask.session_id)
            .where(
                *conditions,
                _OPEN,
                ~_is_held(),
                OpenAgentTask.lease_until.is_not(None),
                OpenAgentTask.losses >= MAX_LOSSES - 1,
            )
            .with_for_update(of=OpenAgentTask, skip_locked=True)
        )
        for task in (await tx.execute(query)).scalars().all():
            if await _losses(tx, task) >= MAX_LOSSES:
                await self._end(tx, task, f"its agent was lost {MAX_LOSSES} times, the last time on {task.worker}")

    async def heartbeat(self, of: Caller, session_id: str, attempt: int, lease_s: float) -> datetime:
        """Renew the claim and return its new end. Raises NotFound, ClaimLost."""
        renew = update(OpenAgentTask).where(OpenAgentTask.session_id == session_id).values(lease_until=until(lease_s))
        async with self._database.begin() as tx:
            await _held_task(tx, of, session_id, attempt)
            row = await tx.get(AgentSession, session_id)
            if row is None or row.state != AgentSessionState.OPEN:
                raise ClaimLost(f"Session {session_id} is over.")
            renewed = (await tx.execute(renew.returning(OpenAgentTask.lease_until))).scalar_one()
            assert renewed is not None
            return renewed

    async def release(self, of: Caller, session_id: str, attempt: int, reason: str | None) -> None:
        """Give the task back, so that another worker can claim it immediately. Raises NotFound, ClaimLost."""
        async with self._database.begin() as tx:
            task = await _held_task(tx, of, session_id, attempt)
            if reason is not None:  # without a reason the worker stopped in an orderly way, which is not a loss
                task.losses = await _losses(tx, task)
            if task.losses >= MAX_LOSSES:
                await self._end(tx, task, f"its agent was lost {MAX_LOSSES} times, the last time: {reason}")
            task.lease_until = None
            unclaimed = update(AgentSession).where(AgentSession.id == session_id, _OPEN)
            await tx.execute(unclaimed.values(expires_at=func.clock_timestamp() + UNCLAIMED))

    async def _end(self, tx: AsyncSession, task: OpenAgentTask, reason: str) -> None:
        query = select(AgentSession).where(AgentSession.id == task.session_id, _OPEN).with_for_update()
        if (row := (await tx.execute(query)).scalar_one_or_none()) is not None:
            await end_row(tx, row, SessionOutcome(reason=reason, lost=True))


async def _losses(tx: AsyncSession, task: OpenAgentTask) -> int:
    """Return how often the task was lost in a row, including this time. The count starts again if the model answered
    during this claim, because an agent that makes progress was lost by chance."""
    assert task.deadline is not None
    claimed = task.deadline - timedelta(seconds=task.timeout_s)
    since = select(SessionCall.number).where(
        SessionCall.session_id == task.session_id, SessionCall.answered_at > claimed
    )
    return 1 if (await tx.execute(since.limit(1))).first() else task.losses + 1


def _is_held() -> ColumnElement[bool]:
    """Return the SQL condition that an agent holds the task."""
    return ~lapsed(OpenAgentTask.lease_until)


async def _held_task(tx: AsyncSession, of: Caller, session_id: str, attempt: int) -> OpenAgentTask:
    """Return the task if this attempt holds it. It does so even after its lease has expired, until the task is claimed
    again. Raises NotFound, ClaimLost."""
    conditions = [] if of.project is None else [AgentSession.project == of.project]
    if (await tx.execute(select(AgentSession.id).where(AgentSession.id == session_id, *conditions))).first() is None:
        raise NotFound("There is no such session.")
    query = (
        select(OpenAgentTask)
        .join(AgentSession, AgentSession.id == OpenAgentTask.session_id)
        .where(
            OpenAgentTask.session_id == session_id,
            AgentSession.attempt == attempt,
            OpenAgentTask.lease_until.is_not(None),
        )
    )
    if (task := (await tx.execute(query.with_for_update(of=OpenAgentTask))).scalar_one_or_none()) is None:
        raise ClaimLost(f"Attempt {attempt} of session {session_id} has been given up, or is over.")
    return task
