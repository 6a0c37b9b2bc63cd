"""Waits for the outcomes of sessions, with one database query for all waiters."""

import asyncio
from collections import defaultdict
from collections.abc import Collection

import structlog

from learnloop_service.app.agent_sessions.store import AgentSessions
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.environment.first_line import first_line
from learnloop_service.training.rollout.agents.sessions import SessionEnd

_LOOK_EVERY_S = 0.1
_ERROR_DELAY_S = 1.0

log = structlog.get_logger(__name__)


class OutcomeWaiters:
    """The waiters on one event loop."""

    def __init__(self, store: AgentSessions) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Future[SessionEnd]]] = defaultdict(set)
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, session_id: str) -> SessionEnd:
        """Wait until the session has ended, and return how."""
        ended: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._waiting[session_id].add(ended)
        if self._looking is None:
            self._looking = asyncio.create_task(self._poll(), name="outcomes of agent sessions")
        try:
            return await ended
        finally:
            self._forget(session_id, ended)

    def _forget(self, session_id: str, ended: "asyncio.Future[SessionEnd]") -> None:
        self._waiting[session_id].discard(ended)
        if not self._waiting[session_id]:
            del self._waiting[session_id]

    async def _poll(self) -> None:
        repeated = RepeatedLog(log)
        try:
            while self._waiting:
                try:
                    await self._look(list(self._waiting))
                    await asyncio.sleep(_LOOK_EVERY_S)
                except DATABASE_DOWN as error:
                    repeated.warning("outcomes of sessions cannot be read", error=first_line(error))
                    await asyncio.sleep(_ERROR_DELAY_S)
        finally:
            self._looking = None

    async def _look(self, ids: Collection[str]) -> None:
        for id, outcome in (await self._store.over(ids)).items():
            for ended in self._waiting.get(id, ()):
                if not ended.done():
                    ended.set_result(SessionEnd(outcome))
