"""Stores feedback on emails, sessions and users. Each event is a row that never changes, so order and repetition do not
matter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import Feedback, Trajectory
from learnloop_service.app.errors import Conflict, InvalidRequest, ServiceError
from learnloop_service.app.feedback.subjects import AGAINST, SUBJECT, Subjects
from learnloop_service.app.feedback.withdrawals import in_force
from learnloop_service.app.schemas.feedback import FeedbackEvent
from learnloop_service.app.security.user_hash import UserHasher

_AHEAD = timedelta(minutes=5)
"""How far a sender's clock can be ahead of the database's."""
_FIELDS = {"user_hash": "user", "asked_as": "model", "outcome_name": "name", **dict.fromkeys(AGAINST, "over")}
"""Fields of an event whose columns have another name."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result for one event. If it has an `error`, the event was not stored."""

    run_id: str | None = None
    session_id: str | None = None
    duplicate: bool = False
    error: ServiceError | None = None


async def take(
    database: Database,
    events: Sequence[FeedbackEvent],
    source: str,
    sees: Callable[[str | None], bool],
    users: UserHasher,
) -> list[Recorded]:
    """Store the valid events in one transaction, and return the result for each, in the same order.

    `sees` returns whether the sender can see a project; objects of other projects count as nonexistent. Of users only
    the hash by `users` is stored. An error is NotFound for a trajectory, a session or a promoted name that does not
    exist, InvalidRequest for one that the event cannot be about, and Conflict for an event id that was already used for
    something else.
    """
    async with database.begin() as tx:
        subjects = await Subjects.of(tx, events, sees, users)
        now = (await tx.execute(select(func.now()))).scalar_one()
        rows = [_row(event, subjects, source, now) for event in events]
        rows = await _fitting(tx, rows)
        sound = [row for row in rows if not isinstance(row, ServiceError)]
        new = await _insert(tx, sound)
        stored = await _stored(tx, [_key(row) for row in sound if row["id"] not in new])
    return [_recorded(event, row, new, stored) for event, row in zip(events, rows, strict=True)]


async def listed(
    database: Database, run_id: str, *, before: str | None, limit: int, trajectory_id: str | None = None
) -> Sequence[Row[Feedback, int | None]]:
    """Return the events in force on the run's trajectories, or on one of them, newest first, each with the trajectory's
    iteration; `before` is a row's id."""
    query = (
        select(Feedback, Trajectory.iteration)
        .join(Trajectory, Trajectory.id == Feedback.trajectory_id)
        .where(Feedback.run_id == run_id, in_force())
    )
    query = newest_first(query, Feedback.id, before, limit, (Feedback.trajectory_id, trajectory_id))
    async with database() as tx:
        return (await tx.execute(query)).all()


async def of_session(database: Database, session_id: str, *, before: str | None, limit: int) -> Sequence[Feedback]:
    """Return the events in force on the session, newest first; `before` is a row's id."""
    conditions = (Feedback.session_id == session_id, in_force())
    query = newest_first(select(Feedback).where(*conditions), Feedback.id, before, limit)
    async with database() as tx:
        return (await tx.execute(query)).scalars().all()


def _row(event: FeedbackEvent, subjects: Subjects, source: str, now: datetime) -> dict[str, Any] | ServiceError:
    try:
        subject = subjects.columns(event)
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
        "outcome_name": event.name,
        "value": event.value,
        "withdraws": event.withdraws,
        "source": source,
        "occurred_at": event.occurred_at or now,
    }


async def _fitting(
    tx: AsyncSession, rows: Sequence[dict[str, Any] | ServiceError]
) -> list[dict[str, Any] | ServiceError]:
    """Replace withdrawals by an error if they name an event, stored by now, that they cannot withdraw."""
    keys = [(row["project"], row["withdraws"]) for row in rows if not isinstance(row, ServiceError)]
    stored = await _stored(tx, [key for key in keys if key[1] is not None])
    return [row if isinstance(row, ServiceError) else _misdirected(row, stored) or row for row in rows]


def _misdirected(row: Mapping[str, Any], stored: Mapping[tuple[str, str], Feedback]) -> InvalidRequest | None:
    event = stored.get((row["project"], row["withdraws"]))
    if event is None:
        return None
    where = ("body", "withdraws")
    if event.withdraws is not None:
        return InvalidRequest(where, f"Event {event.event_id!r} is a withdrawal, which cannot be withdrawn.")
    if any(getattr(event, name) != row[name] for name in (*SUBJECT, "source")):
        return InvalidRequest(
            where, f"Event {event.event_id!r} is about something else. Give the subject and the source that it has."
        )
    return None


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
    events = await tx.execute(select(Feedback).where(tuple_(Feedback.project, Feedback.event_id).in_(keys)))
    return {(row.project, row.event_id): row for row in events.scalars()}


def _recorded(
    event: FeedbackEvent, row: dict[str, Any] | ServiceError, new: set[str], stored: Mapping[tuple[str, str], Feedback]
) -> Recorded:
    if isinstance(row, ServiceError):
        return Recorded(error=row)
    if row["id"] in new:
        return Recorded(row["run_id"], row["session_id"])
    compared = {*SUBJECT, *AGAINST, "type", "confidence", "comment", "outcome_name", "value", "withdraws", "source"}
    # If the sender omits the time, each repetition gets a different one.
    compared |= {"occurred_at"} if event.occurred_at is not None else set()
    before = stored[_key(row)]
    if differing := sorted(name for name in compared if getattr(before, name) != row[name]):
        fields = ", ".join(_FIELDS.get(name, name) for name in differing)
        return Recorded(error=Conflict(f"Event {event.event_id!r} was already sent with a different {fields}."))
    return Recorded(row["run_id"], row["session_id"], duplicate=True)
