"""Whose turn it is: of the deliveries of one run to one receiver that wait, only the first is sent.

The row says so itself (`is_next`), so that finding what is due costs nothing for those that have to wait. Whoever adds,
settles or queues again deliveries of a run does so under `hold`, and leaves exactly one of each receiver's next.
"""

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.tables import WebhookDelivery
from app.domain.delivery_state import DeliveryState


async def hold(session: AsyncSession, run_id: str) -> None:
    """Until the transaction ends no other changes whose turn it is in that run."""
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"deliveries of {run_id}", 0))))


async def advance(session: AsyncSession, run_id: str, receiver: str) -> None:
    """One was settled: the next one has its turn."""
    row = WebhookDelivery
    mine = (row.run_id == run_id, row.receiver == receiver, row.state == DeliveryState.PENDING)
    first = select(row.id).where(*mine).order_by(row.event_seq, row.seq).limit(1).scalar_subquery()
    await session.execute(update(row).where(row.id == first, row.is_next.is_(False)).values(is_next=True))


async def assign(session: AsyncSession, run_id: str, receiver: str) -> None:
    """Some were queued again, wherever in the order: the first one of all has its turn."""
    row = WebhookDelivery
    mine = (row.run_id == run_id, row.receiver == receiver, row.state == DeliveryState.PENDING)
    first = select(row.id).where(*mine).order_by(row.event_seq, row.seq).limit(1).scalar_subquery()
    await session.execute(update(row).where(*mine, row.is_next != (row.id == first)).values(is_next=row.id == first))
