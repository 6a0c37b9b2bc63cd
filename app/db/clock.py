"""The database's clock, by which everything that is stored is dated. Our own may be wrong, or jump."""

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import func, select

from app.db.database import Database


@dataclass(frozen=True, slots=True)
class DatabaseTime:
    """A time that the database told. What has passed since is measured by the monotonic clock, which does not jump."""

    told: datetime
    _at: float = field(default_factory=time.monotonic)

    def now(self) -> datetime:
        """The database's time now."""
        return self.told + timedelta(seconds=time.monotonic() - self._at)


async def database_time(database: Database) -> DatabaseTime:
    """Ask the database. Raises DATABASE_DOWN."""
    async with database() as tx:
        return DatabaseTime((await tx.execute(select(func.clock_timestamp()))).scalar_one())
