"""The log of what happens to runs and evaluations: append-only, one gapless sequence each.

SSE and webhooks read nothing else.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.tables import EvaluationEvent, EvaluationJob, Event, Run
from app.domain.event_types import EventType
from app.webhooks.outbox import enqueue

CHANNEL = "learnloop_events"
"""Channel of NOTIFY: a hint with the id of a run. Listeners read by sequence number, and also poll."""


async def append(
    session: AsyncSession,
    run_id: str,
    type: EventType,
    actor: str,
    data: Mapping[str, Any] | None = None,
    *,
    iteration: int | None = None,
) -> int:
    """Append an event in the caller's transaction, with its webhook deliveries; its sequence number.

    The number is taken under the run's row lock, so that events become visible in order.
    """
    advance = update(Run).where(Run.id == run_id).values(event_seq=Run.event_seq + 1).returning(Run.event_seq)
    seq = (await session.execute(advance)).scalar_one()
    event = {
        "run_id": run_id,
        "seq": seq,
        "type": str(type),
        "version": 1,
        "iteration": iteration,
        "actor": actor,
        "data": dict(data or {}),
    }
    row = (await session.execute(insert(Event).values(event).returning(Event))).scalar_one()
    await enqueue(session, row)
    await session.execute(select(func.pg_notify(CHANNEL, run_id)))
    return seq


async def append_to_evaluation(
    session: AsyncSession, evaluation_id: str, type: EventType, actor: str, data: Mapping[str, Any] | None = None
) -> int:
    """The same for an evaluation."""
    job = EvaluationJob
    advance = update(job).where(job.id == evaluation_id).values(event_seq=job.event_seq + 1).returning(job.event_seq)
    seq = (await session.execute(advance.execution_options(synchronize_session=False))).scalar_one()
    event = {
        "evaluation_id": evaluation_id,
        "seq": seq,
        "type": str(type),
        "version": 1,
        "actor": actor,
        "data": dict(data or {}),
    }
    row = (await session.execute(insert(EvaluationEvent).values(event).returning(EvaluationEvent))).scalar_one()
    await enqueue(session, row)
    return seq
