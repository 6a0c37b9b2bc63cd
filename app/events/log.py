"""The log of what happens to runs, evaluations and releases: append-only, with a gapless sequence of numbers for each.

SSE and webhooks read only this log.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import Insert, bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import EvaluationEvent, EvaluationJob, Event, Release, ReleaseEvent, Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.webhooks.outbox import enqueue

CHANNEL = "learnloop_events"
"""NOTIFY channel. A notification is a hint with a run's id: listeners read by sequence number, and also poll."""

_Row = TypeVar("_Row", EvaluationEvent, ReleaseEvent)


def _appending() -> Insert:
    """Build the statement that takes a number, writes the event and notifies. It is built only once."""
    numbered = (
        update(Run)
        .where(Run.id == bindparam("run_id"))
        .values(event_seq=Run.event_seq + 1)
        .returning(Run.id, Run.event_seq)
        .cte("numbered")
    )
    table = Event.metadata.tables[Event.__tablename__]
    event = table.c
    parameters = [bindparam(f"new_{name}", type_=event[name].type) for name in _EVENT_COLUMNS]
    return (
        insert(table)
        .from_select(["run_id", "seq", *_EVENT_COLUMNS], select(numbered.c.id, numbered.c.event_seq, *parameters))
        .returning(event.seq, event.occurred_at, func.pg_notify(CHANNEL, event.run_id))
    )


_EVENT_COLUMNS = ("type", "version", "iteration", "actor", "data")
_APPEND = _appending()


async def append(
    tx: AsyncSession,
    run_id: str,
    type: EventType,
    actor: str,
    data: Mapping[str, Any] | None = None,
    *,
    iteration: int | None = None,
) -> int:
    """Append an event in the caller's transaction, with its webhook deliveries. Returns its sequence number.

    The number is taken under the run's row lock, so events become visible in order.
    """
    values = {"type": str(type), "version": 1, "iteration": iteration, "actor": actor, "data": dict(data or {})}
    parameters = {"run_id": run_id} | {f"new_{name}": value for name, value in values.items()}
    await tx.flush()  # a statement on tables does not flush by itself
    seq, occurred_at, _ = (await tx.execute(_APPEND, parameters)).one()
    event = Event(run_id=run_id, seq=seq, occurred_at=occurred_at, **values)
    await enqueue(tx, event)
    return int(seq)


async def append_to_evaluation(
    tx: AsyncSession, evaluation_id: str, type: EventType, actor: str, data: Mapping[str, Any] | None = None
) -> int:
    """Append an event of an evaluation in the same way."""
    seq = await _next_seq(tx, EvaluationJob, evaluation_id)
    return await _append(tx, EvaluationEvent, {"evaluation_id": evaluation_id, "seq": seq}, type, actor, data)


async def append_to_release(
    tx: AsyncSession, release_id: str, type: EventType, actor: str, data: Mapping[str, Any] | None = None
) -> int:
    """Append an event of a release in the same way."""
    seq = await _next_seq(tx, Release, release_id)
    return await _append(tx, ReleaseEvent, {"release_id": release_id, "seq": seq}, type, actor, data)


async def _next_seq(tx: AsyncSession, owner: type[EvaluationJob | Release], id: str) -> int:
    advance = update(owner).where(owner.id == id).values(event_seq=owner.event_seq + 1).returning(owner.event_seq)
    return (await tx.execute(advance.execution_options(synchronize_session=False))).scalar_one()


async def _append(
    tx: AsyncSession,
    table: type[_Row],
    key: Mapping[str, Any],
    type: EventType,
    actor: str,
    data: Mapping[str, Any] | None,
) -> int:
    event = {**key, "type": str(type), "version": 1, "actor": actor, "data": dict(data or {})}
    row = (await tx.execute(insert(table).values(event).returning(table))).scalar_one()
    await enqueue(tx, row)
    return row.seq
