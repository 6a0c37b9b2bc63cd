"""Whose turn it is: of the deliveries of a run or evaluation that wait for one receiver, only the first is sent.

The row says so itself (`is_next`), so that finding what is due costs nothing for those that have to wait. Whoever adds,
settles or queues again deliveries of a run or evaluation does so under `hold`, and leaves exactly one of each receiver
the next.
"""

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.tables import WebhookDelivery
from app.domain.delivery_state import DeliveryState


async def hold(tx: AsyncSession, subject: str) -> None:
    """Until the transaction ends no other changes whose turn it is in that run or evaluation."""
    await tx.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"deliveries of {subject}", 0))))


async def advance(tx: AsyncSession, subject: str, receiver: str) -> None:
    """One was settled: the next one has its turn."""
    row = WebhookDelivery
    mine = (of_subject(subject), row.receiver == receiver, row.state == DeliveryState.PENDING)
    first = select(row.id).where(*mine).order_by(row.event_seq, row.seq).limit(1).scalar_subquery()
    await tx.execute(update(row).where(row.id == first, row.is_next.is_(False)).values(is_next=True))


async def assign(tx: AsyncSession, subject: str, receiver: str) -> None:
    """Some were queued again, wherever in the order: the first one of all has its turn."""
    row = WebhookDelivery
    mine = (of_subject(subject), row.receiver == receiver, row.state == DeliveryState.PENDING)
    first = select(row.id).where(*mine).order_by(row.event_seq, row.seq).limit(1).scalar_subquery()
    await tx.execute(update(row).where(*mine, row.is_next != (row.id == first)).values(is_next=row.id == first))


def of_subject(subject: str) -> ColumnElement[bool]:
    """The deliveries of the run or evaluation with that id."""
    return or_(WebhookDelivery.run_id == subject, WebhookDelivery.evaluation_id == subject)
