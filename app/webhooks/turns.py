"""The order of deliveries: of those of a run, evaluation or release that wait for one receiver, only the first is sent.

It is marked in its row (`is_next`), so the search for due deliveries skips those that have to wait at no cost. Code
that adds, settles or requeues deliveries must call `hold` first, and must leave exactly one of
them marked for each receiver.
"""

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import WebhookDelivery
from learnloop_service.app.domain.delivery_state import DeliveryState


async def hold(tx: AsyncSession, subject: str) -> None:
    """Lock the order of the subject's deliveries until the transaction ends."""
    await tx.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"deliveries of {subject}", 0))))


async def advance(tx: AsyncSession, subject: str, receiver: str) -> None:
    """Mark the next delivery, after one was settled."""
    row = WebhookDelivery
    conditions = (of_subject(subject), row.receiver == receiver, row.state == DeliveryState.PENDING)
    first = select(row.id).where(*conditions).order_by(row.event_seq, row.seq).limit(1).scalar_subquery()
    await tx.execute(update(row).where(row.id == first, row.is_next.is_(False)).values(is_next=True))


async def assign(tx: AsyncSession, subject: str, receiver: str) -> None:
    """Mark the first delivery, after some were requeued anywhere in the order."""
    row = WebhookDelivery
    conditions = (of_subject(subject), row.receiver == receiver, row.state == DeliveryState.PENDING)
    first = select(row.id).where(*conditions).order_by(row.event_seq, row.seq).limit(1).scalar_subquery()
    await tx.execute(update(row).where(*conditions, row.is_next != (row.id == first)).values(is_next=row.id == first))


def of_subject(subject: str) -> ColumnElement[bool]:
    """SQL condition: the delivery is of the run, evaluation or release with that id."""
    row = WebhookDelivery
    return or_(row.run_id == subject, row.evaluation_id == subject, row.release_id == subject)
