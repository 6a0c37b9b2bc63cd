"""The agent sessions of the rollouts of a run or an evaluation, opened and restarted under its lease."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.app.agent_sessions.outcomes import OutcomeWaiters
from learnloop_service.app.agent_sessions.store import (
    AgentSessions,
    ClaimLost,
    OpenedSession,
    OutcomeKnown,
    PinnedModel,
    RolloutSlot,
    SessionIsOver,
    SessionSpec,
)
from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.claims.lease import Lease, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Run
from learnloop_service.app.worker.driven import query
from learnloop_service.training.rollout.agents.sessions import (
    RolloutSession,
    SessionEnd,
    SessionHasEnded,
    SessionLimits,
    SessionOutcome,
)
from learnloop_service.training.rollout.model_calls import AnsweredCall, Sampling


class LeasedSessions:
    """`learnloop_service.training.rollout.agents.sessions.RolloutSessions` for one run or evaluation, under its lease.

    Can be used on any event loop; the database is queried on the service's (`main_loop`).
    """

    def __init__(
        self,
        database: Database,
        lease: Lease[Any],
        main_loop: asyncio.AbstractEventLoop,
        *,
        project: str,
        backend: str,
    ) -> None:
        self._database = database
        self.lease = lease
        self.main_loop = main_loop
        self.project = project
        self._backend = backend
        self._store = AgentSessions(database)
        self._calls = SessionCalls(database)
        self._outcomes = OutcomeWaiters(self._store)

    def _slot(self, iteration: int, entry: str) -> RolloutSlot:
        if self.lease.table is Run:
            return RolloutSlot(self.lease.id, iteration, entry)
        return RolloutSlot(None, iteration, entry, self.lease.id)

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
        """See `RolloutSessions`."""
        slot = self._slot(iteration, entry)
        spec = SessionSpec(
            self.project,
            PinnedModel(model, model, step, self._backend, slot.run_id),
            timedelta(seconds=ttl_s),
            limits,
            sampling,
            seed,
            explicit_restart=True,
            slot=slot,
        )
        return _rollout_session(await self._under_lease(lambda session: self._store.open_in(session, spec)))

    async def restart(self, session_id: str) -> RolloutSession:
        """See `RolloutSessions`. Raises SessionHasEnded."""
        same_session = AgentSession.id == session_id
        try:
            return _rollout_session(
                await self._under_lease(lambda session: self._store.restart_in(session, same_session))
            )
        except SessionIsOver as error:
            raise SessionHasEnded(str(error)) from error

    async def ended(self, session_id: str) -> SessionEnd:
        """See `RolloutSessions`."""
        return await run_on_loop(self.main_loop, self._outcomes.wait(session_id))

    async def end(self, session_id: str, attempt: int, outcome: SessionOutcome) -> SessionEnd:
        """See `RolloutSessions`."""
        try:
            await query(self.main_loop, lambda: self._store.end(self._owner, session_id, outcome, attempt))
        except (SessionIsOver, ClaimLost, OutcomeKnown):
            return await self.ended(session_id)
        return SessionEnd(outcome)

    async def calls(self, session_id: str) -> list[AnsweredCall]:
        """See `RolloutSessions`."""
        return await query(self.main_loop, lambda: self._calls.of_last_attempt(session_id))

    @property
    def _owner(self) -> Caller:
        return Caller(self.lease.actor, self.project, frozenset())

    async def _under_lease(self, act: Callable[[AsyncSession], Awaitable[OpenedSession]]) -> OpenedSession:
        async def work() -> OpenedSession:
            async with self._database.begin() as tx:
                await require(tx, self.lease)
                return await act(tx)

        return await query(self.main_loop, work)


def _rollout_session(opened: OpenedSession) -> RolloutSession:
    row = opened.row
    return RolloutSession(row.id, f"/sessions/{row.id}/v1", row.attempt, opened.key)
