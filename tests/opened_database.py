"""The database of a test, opened while the service uses it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import text

from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url


@asynccontextmanager
async def opened_database(url: str) -> AsyncIterator[Database]:
    """Open a database, and close its connections in the end."""
    engine = make_engine(parse_url(url))
    try:
        yield make_database(engine)
    finally:
        await engine.dispose()


async def execute(url: str, statement: str, **values: Any) -> list[Any]:
    """Execute one statement as a transaction, and return its rows."""
    async with opened_database(url) as database, database.begin() as tx:
        result: Any = await tx.execute(text(statement), values)
        return list(result) if result.returns_rows else []
