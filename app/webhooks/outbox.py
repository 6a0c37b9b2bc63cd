"""From an event to the deliveries it causes, in the event's own transaction."""

from sqlalchemy.ext.asyncio import AsyncSession

from app.models import Event


async def enqueue(session: AsyncSession, event: Event) -> None:
    """Write a delivery for every endpoint that wants the event."""
