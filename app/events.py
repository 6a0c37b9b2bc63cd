"""The log of what happens to runs: append-only, one gapless sequence a run. SSE and webhooks read nothing else."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.tables import Event, Run
from app.webhooks.outbox import enqueue

CHANNEL = "learnloop_events"
"""Of NOTIFY: a hint with a run's id. Whoever listens reads by sequence number, and polls as well."""


class EventType(StrEnum):
    """What can happen. docs/events.md tells each one's data."""

    RUN_CREATED = "run.created"
    RUN_STARTED = "run.started"
    """A worker claimed it: its first one, or another after a release, a loss, a pause or a retry."""
    RUN_RELEASED = "run.released"
    """Its worker stopped in good order; another one goes on."""
    RUN_PAUSED = "run.paused"
    RUN_RESUMED = "run.resumed"
    RUN_RETRIED = "run.retried"
    RUN_FORKED = "run.forked"
    CANCEL_REQUESTED = "run.cancel_requested"
    PAUSE_REQUESTED = "run.pause_requested"
    RUN_CANCELLED = "run.cancelled"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    PHASE_COMPLETED = "phase.completed"
    ITERATION_COMPLETED = "iteration.completed"
    BUDGET_REACHED = "budget.reached"
    CHECKPOINT_PUSHED = "checkpoint.pushed"


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
