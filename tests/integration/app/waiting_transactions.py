"""Whether a transaction waits for another one."""

from sqlalchemy import text

from learnloop_service.app.db.database import Database


async def is_waiting(database: Database) -> bool:
    """Whether a statement waits for a row that another transaction has locked."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with database() as tx:
        return bool((await tx.execute(query)).scalar_one())
