"""The lock of a promoted name. Whoever decides by a name's current promotion whether to add another one holds it."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession


async def lock_promotions(tx: AsyncSession, project: str, name: str) -> None:
    """Let no other transaction promote to the name, or withdraw it, until this one ends."""
    await tx.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"promotions of {project}/{name}", 0))))
