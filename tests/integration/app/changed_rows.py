"""Changing rows behind the service's back."""

from sqlalchemy import text

from learnloop_service.app.db.database import make_engine, parse_url


async def change(database_url: str, statement: str, rows: int = 1) -> None:
    """Execute a statement that changes so many rows."""
    engine = make_engine(parse_url(database_url))
    async with engine.begin() as connection:
        changed = await connection.execute(text(statement))
        assert changed.rowcount == rows
    await engine.dispose()
