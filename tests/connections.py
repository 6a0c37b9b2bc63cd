"""Ending the connections of a database, as a server that restarts or fails over does."""

from typing import Any

from psycopg import AsyncConnection

_END = (
    "SELECT pid, pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
    "WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
"""With a timeout (in milliseconds), the function returns when the connection has ended. Without one it returns when the
signal has been sent, and the client's next statement may be the one that fails."""


async def end_connections(admin: AsyncConnection[Any], database: str) -> list[int]:
    """End every other connection to the database, and return the process ids of those that have ended."""
    rows = await (await admin.execute(_END, [database])).fetchall()
    return [pid for pid, ended in rows if ended]
