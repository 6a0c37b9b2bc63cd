"""Stores feedback on emails and sessions. Each event is a row that never changes, so order and repetition do not
matter."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from app.db.database import Database
from app.db.tables import AgentSession, Feedback, Reflection, Run, Trajectory
from app.errors import Conflict, InvalidRequest, NotFound, ServiceError
from app.schemas.feedback import FeedbackEvent
from judges.feedback import ONLINE

_AHEAD = timedelta(minutes=5)
"""How far a sender's clock can be ahead of the database's."""
_SUBJECT = ("trajectory_id", "against_id", "session_id", "against_session_id")
_NO_SUBJECT: dict[str, Any] = dict.fromkeys((*_SUBJECT, "run_id"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result for one event. If it has an `error`, the event was not stored."""

    run_id: str | None = None
    session_id: str | None = None
    duplicate: bool = False
    error: ServiceError | None = None


async def take(
    database: Database, events: Sequence[FeedbackEvent], source: str, sees: Callable[[str | None], bool]
) -> list[Recorded]:
    """Store the valid events in one transaction, and return the result for each, in the same order.

    `sees` returns whether the sender can see a project; objects of other projects count as nonexistent. An error is
    NotFound for a trajectory or a session that does not exist, InvalidRequest for one that the event cannot be about,
    and Conflict for an event id that was already used for something else.
    """
    async with database.begin() as tx:
        emails = await _Emails.of(tx, events, sees)
        worked = await _worked(tx, events, sees)
        now = (await tx.execute(select(func.now()))).scalar_one()
        rows = [_row(event, emails, worked, source, now) for event in events]
        sound = [row for row in rows if not isinstance(row, ServiceError)]
        new = await _insert(tx, sound)
        stored = await _stored(tx, [_key(row) for row in sound if row["id"] not in new])
    return [_taken(event, row, new, stored) for event, row in zip(events, rows, strict=True)]


async def listed(
    database: Database, run_id: str, *, before: str | None, limit: int, trajectory_id: str | None = None
) -> Sequence[Row[Feedback, int | None]]:
    """Return the events on the run's trajectories, or on one of them, newest first, each with the trajectory's
    iteration; `before` is a row's id."""
    query = (
        select(Feedback, Trajectory.iteration)
        .join(Trajectory, Trajectory.id == Feedback.trajectory_id)
        .where(Feedback.run_id == run_id)
        .order_by(Feedback.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(Feedback.id < before)
    if trajectory_id is not None:
        query = query.where(Feedback.trajectory_id == trajectory_id)
    async with database() as tx:
        return (await tx.execute(query)).all()


async def of_session(database: Database, session_id: str, *, before: str | None, limit: int) -> Sequence[Feedback]:
    """Return the events on the session, newest first; `before` is a row's id."""
    query = select(Feedback).where(Feedback.session_id == session_id).order_by(Feedback.id.desc()).limit(limit)
    if before is not None:
        query = query.where(Feedback.id < before)
    async with database() as tx:
        return (await tx.execute(query)).scalars().all()


@dataclass(frozen=True, slots=True)
class _Email:
    project: str
    run_id: str | None
    is_email: bool
    """Whether its environment writes emails."""
    written: bool


@dataclass(frozen=True, slots=True)
class _Emails:
    """The trajectories that events refer to."""

    shown: Mapping[tuple[str, int], str]
    """Trajectory ids of sample emails, by run and iteration."""
    known: Mapping[str, _Email]

    @classmethod
    async def of(
        cls, tx: AsyncSession, events: Sequence[FeedbackEvent], sees: Callable[[str | None], bool]
    ) -> "_Emails":
        places = {(event.run_id, event.iteration) for event in events if event.run_id is not None}
        shown = await _shown(tx, places) if places else {}
        named = {*shown.values(), *(id for event in events for id in (event.trajectory_id, event.over) if id)}
        return cls(shown, await _known(tx, named, sees))

    def subject(self, event: FeedbackEvent) -> dict[str, Any]:
        """Return the columns that say what the event is about. Raises NotFound, InvalidRequest."""
        id = event.trajectory_id or self.shown.get((event.run_id or "", event.iteration or 0))
        if id is None or (event.run_id is not None and id not in self.known):
            raise NotFound(f"Run {event.run_id!r} has no sample email after iteration {event.iteration}.")
        self._check(id, event.type)
        if event.over is not None:
            self._check(event.over, event.type)
        if event.over == id:
            raise InvalidRequest(("body", "over"), "An email cannot be preferred over itself.")
        email = self.known[id]
        return _NO_SUBJECT | {
            "project": email.project,
            "run_id": email.run_id,
            "trajectory_id": id,
            "against_id": event.over,
        }

    def _check(self, id: str, type: str) -> None:
        """Check that an event of that type can be about the trajectory. Raises NotFound, InvalidRequest."""
        email = self.known.get(id)
        if email is None:
            raise NotFound(f"There is no trajectory {id!r}.")
        if not email.written and (email.is_email or type in ONLINE):
            raise InvalidRequest(
                ("body",), f"Trajectory {id!r} has no email, so it cannot have feedback of type {type!r}."
            )


async def _shown(tx: AsyncSession, places: Iterable[tuple[str, int | None]]) -> dict[tuple[str, int], str]:
    key = tuple_(Reflection.run_id, Reflection.iteration)
    query = select(Reflection.run_id, Reflection.iteration, Reflection.trajectory_id).where(key.in_(places))
    return {(run_id, iteration): id for run_id, iteration, id in await tx.execute(query)}


async def _known(tx: AsyncSession, ids: Iterable[str], sees: Callable[[str | None], bool]) -> dict[str, _Email]:
    """Return the trajectories with these ids that the sender can see, locked against deletion until the transaction
    ends."""
    email, project = Trajectory.outcome["email"], func.coalesce(Run.model_project, Trajectory.project)
    query = (
        select(Trajectory.id, project, Trajectory.run_id, email.is_not(None), func.jsonb_typeof(email) == "object")
        .outerjoin(Run, Run.id == Trajectory.run_id)
        .where(Trajectory.id.in_(ids))
        .with_for_update(read=True, key_share=True, of=Trajectory)
    )
    found = await tx.execute(query)
    return {
        id: _Email(of or "", run_id, is_email, bool(written)) for id, of, run_id, is_email, written in found if sees(of)
    }


@dataclass(frozen=True, slots=True)
class _Worked:
    """A session that an event refers to."""

    project: str
    in_production: bool
    """Whether it is not a rollout of a run or an evaluation."""


async def _worked(
    tx: AsyncSession, events: Sequence[FeedbackEvent], sees: Callable[[str | None], bool]
) -> dict[str, _Worked]:
    """Return the sessions that the events refer to and the sender can see, locked against deletion until the
    transaction ends."""
    of_sessions = [event for event in events if event.session_id is not None]
    if not of_sessions:
        return {}
    query = (
        select(AgentSession.id, AgentSession.project, AgentSession.entry.is_(None))
        .where(AgentSession.id.in_({id for event in of_sessions for id in (event.session_id, event.over) if id}))
        .with_for_update(read=True, key_share=True)
    )
    return {id: _Worked(of, alone) for id, of, alone in await tx.execute(query) if sees(of)}


def _session_subject(event: FeedbackEvent, session_id: str, worked: Mapping[str, _Worked]) -> dict[str, Any]:
    """Return the columns that say what the event is about. Raises NotFound, InvalidRequest."""
    if event.type in ONLINE:
        raise InvalidRequest(("body", "type"), f"A session has no email, so it cannot have feedback {event.type!r}.")
    for id in (session_id, event.over):
        if id is not None and id not in worked:
            raise NotFound(f"There is no session {id!r}.")
        if id is not None and not worked[id].in_production:
            raise InvalidRequest(
                ("body",), f"Session {id!r} is a rollout of a run or an evaluation: give feedback on its trajectory."
            )
    if event.over == session_id:
        raise InvalidRequest(("body", "over"), "A session cannot be preferred over itself.")
    if event.over is not None and worked[event.over].project != worked[session_id].project:
        raise InvalidRequest(("body", "over"), "The two sessions are of different projects.")
    mine = {"project": worked[session_id].project, "session_id": session_id, "against_session_id": event.over}
    return _NO_SUBJECT | mine


def _row(
    event: FeedbackEvent, emails: _Emails, worked: Mapping[str, _Worked], source: str, now: datetime
) -> dict[str, Any] | ServiceError:
    try:
        if event.session_id is not None:
            subject = _session_subject(event, event.session_id, worked)
        else:
            subject = emails.subject(event)
        if event.occurred_at is not None and event.occurred_at > now + _AHEAD:
            raise InvalidRequest(("body", "occurred_at"), "occurred_at is in the future.")
    except ServiceError as error:
        return error
    return {
        **subject,
        "id": str(ULID()),
        "event_id": event.event_id,
        "type": event.type,
        "confidence": event.confidence,
        "comment": event.comment,
        "source": source,
        "occurred_at": event.occurred_at or now,
    }


async def _insert(tx: AsyncSession, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Insert the rows, and return the ids of those whose event is new."""
    if not rows:
        return set()
    add = (
        insert(Feedback)
        .on_conflict_do_nothing(index_elements=[Feedback.project, Feedback.event_id])
        .returning(Feedback.id)
    )
    # The order is fixed, because two requests with the same events could deadlock otherwise.
    ordered = sorted(rows, key=lambda row: (row["project"], row["event_id"]))
    return set((await tx.execute(add, ordered)).scalars())


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["project"], row["event_id"]


async def _stored(tx: AsyncSession, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Feedback]:
    if not keys:
        return {}
    found = await tx.execute(select(Feedback).where(tuple_(Feedback.project, Feedback.event_id).in_(keys)))
    return {(row.project, row.event_id): row for row in found.scalars()}


def _taken(
    event: FeedbackEvent, row: dict[str, Any] | ServiceError, new: set[str], stored: Mapping[tuple[str, str], Feedback]
) -> Recorded:
    if isinstance(row, ServiceError):
        return Recorded(error=row)
    if row["id"] in new:
        return Recorded(row["run_id"], row["session_id"])
    compared = {*_SUBJECT, "type", "confidence", "comment", "source"}
    # If the sender omits the time, each repetition gets a different one.
    compared |= {"occurred_at"} if event.occurred_at is not None else set()
    before = stored[_key(row)]
    if differing := sorted(name for name in compared if getattr(before, name) != row[name]):
        fields = ", ".join("over" if name.startswith("against_") else name for name in differing)
        return Recorded(error=Conflict(f"Event {event.event_id!r} was already sent with a different {fields}."))
    return Recorded(row["run_id"], row["session_id"], duplicate=True)
