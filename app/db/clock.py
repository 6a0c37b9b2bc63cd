"""The database's clock, the source of every stored time. This machine's clock can be wrong, or jump."""

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import func, select

from learnloop_service.app.db.database import Database


@dataclass(frozen=True, slots=True)
class DatabaseTime:
    """A time from the database. The time since then is measured with the monotonic clock, which does not jump."""

    read_at: datetime
    _at: float = field(default_factory=time.monotonic)

    def now(self) -> datetime:
        """Return the database's current time."""
        return self.read_at + timedelta(seconds=time.monotonic() - self._at)


async def database_time(database: Database) -> DatabaseTime:
    """Return the database's time. Raises DATABASE_DOWN."""
    async with database() as tx:
        return DatabaseTime((await tx.execute(select(func.clock_timestamp()))).scalar_one())
