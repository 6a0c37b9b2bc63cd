"""Evidence from feedback: the combined events on each email, for judges and for the API."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Row, Select, case, func, literal, null, select
from sqlalchemy.dialects.postgresql import JSONB

from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Feedback, Run, Trajectory
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.feedback.sums import events_about, sums_of
from learnloop_service.environment.first_line import first_line
from learnloop_service.judges.base import Evidence
from learnloop_service.judges.feedback import ONLINE

_NEWEST = 2_000
"""Maximum number of emails used as evidence."""
_KEPT_S = 5.0
"""How long evidence is cached, in seconds, so that all groups of an iteration are judged by the same evidence."""

log = structlog.get_logger(__name__)


class StoredFeedback:
    """Feedback on the emails of a run, and on those of its project's other runs with the same environment and graph. It
    is limited to the newest 2,000 emails.

    While the database is down there is no feedback, and judging continues without it.
    """

    def __init__(self, database: Database, main_loop: asyncio.AbstractEventLoop, run: Run) -> None:
        """`main_loop` is the event loop on which the database is queried."""
        self._database = database
        self._main_loop = main_loop
        graph = run.stored_request.environment.config.get("graph")
        graph_of = func.coalesce(Run.request["environment"]["config"]["graph"], literal(None, JSONB))
        self._heard: tuple[float, Sequence[Evidence]] | None = None
        self._asking = asyncio.Lock()
        self._alike = select(Run.id).where(
            Run.model_project == run.model_project,
            Run.environment == run.environment,
            graph_of == literal(graph, JSONB),
        )

    async def evidence(self) -> Sequence[Evidence]:
        """Return the evidence, newest email first, at most five seconds old. All calls must come from one event loop,
        which need not be the main loop."""
        async with self._asking:
            if self._heard is None or time.monotonic() > self._heard[0] + _KEPT_S:
                self._heard = time.monotonic(), await self._ask()
            return self._heard[1]

    async def _ask(self) -> Sequence[Evidence]:
        try:
            return await run_on_loop(self._main_loop, self._evidence())
        except DATABASE_DOWN as error:
            log.warning("no feedback: the database does not answer", error=first_line(error))
            return ()

    async def _evidence(self) -> list[Evidence]:
        query = _emails(Trajectory.run_id.in_(self._alike)).order_by(Trajectory.seq.desc()).limit(_NEWEST)
        async with self._database() as tx:
            return [_evidence(row) for row in await tx.execute(query)]


async def emails(database: Database, run_id: str, *, after: int, limit: int) -> Sequence[Row[Any]]:
    """Return what is known about each of the run's emails with feedback, in the order in which they were saved,
    starting after `after`. The columns are those of `_emails`."""
    query = _emails(Trajectory.run_id == run_id).where(Trajectory.seq > after).order_by(Trajectory.seq).limit(limit)
    async with database() as tx:
        return (await tx.execute(query)).all()


def _emails(of: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Select one row for each email that has feedback: trajectory_id, seq, kind, iteration, citations, online, wins,
    losses, simulated."""
    events = events_about(Feedback.trajectory_id, Feedback.against_id)
    return (
        select(
            Trajectory.id.label("trajectory_id"),
            Trajectory.seq,
            Trajectory.kind,
            Trajectory.iteration,
            Trajectory.outcome["email"]["citations"].label("citations"),
            func.max(case(ONLINE, value=events.c.type, else_=null())).label("online"),
            *sums_of(events),
        )
        .join(events, events.c.subject == Trajectory.id)
        .where(of)
        .group_by(Trajectory.id)
    )


def _evidence(row: Row[Any]) -> Evidence:
    return Evidence(
        trajectory_id=row.trajectory_id,
        citations=frozenset(row.citations or ()),
        online=row.online,
        wins=row.wins,
        losses=row.losses,
        simulated=row.simulated,
    )
