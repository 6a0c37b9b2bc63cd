"""The database: a pool of connections, and transactions on it. Postgres only, driver psycopg 3."""

from collections.abc import Mapping
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, make_url
from sqlalchemy.engine.interfaces import AdaptedConnection
from sqlalchemy.event import listen
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from app.db import json_text

if TYPE_CHECKING:  # loaded with the first connection
    import psycopg

Database = async_sessionmaker[AsyncSession]
"""Makes transactions: `async with database.begin() as tx` to write, `async with database() as tx` to read."""

SERVER_SETTINGS = {
    "application_name": "learnloop",
    "timezone": "UTC",
    "statement_timeout": "15000",
    "idle_in_transaction_session_timeout": "30000",
}
"""Settings of every connection. Times are in milliseconds."""
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""When the operating system ends a connection to a machine that no longer answers, in seconds, seconds and probes."""


class DatabaseUrlError(Exception):
    """DATABASE_URL is not a Postgres URL, or no Postgres there accepts our connection."""


def parse_url(database_url: str) -> URL:
    """Return the URL for psycopg. Raises DatabaseUrlError, which never shows the URL, since it can hold a password."""
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        raise DatabaseUrlError("DATABASE_URL is not a URL such as postgresql://user:password@host/name") from None
    if url.drivername not in {"postgres", "postgresql", "postgresql+psycopg"}:
        raise DatabaseUrlError(
            f"DATABASE_URL is for {url.drivername!r}; only Postgres is supported: postgresql://user:password@host/name"
        )
    return url.set(drivername="postgresql+psycopg")


def options_of(settings: Mapping[str, str]) -> str:
    """Write server settings for a connection's parameter `options`."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def make_engine(url: URL, connections: int = 7) -> AsyncEngine:
    """Make an engine with a small pool, because several services and tools share the server's connections.

    All connections stay open: opening one for a request and closing it afterwards would cost more than the request.
    A connection that the server has closed is noticed without a ping, which costs a third of a short transaction.
    """
    engine = create_async_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        pool_recycle=600,
        json_serializer=json_text.dumps,
        json_deserializer=json_text.loads,
        connect_args={"connect_timeout": 10, "options": options_of(SERVER_SETTINGS), **_KEEPALIVE},
    )
    listen(engine.sync_engine, "checkout", _replace_if_closed)
    return engine


def _replace_if_closed(connection: AdaptedConnection, *_: object) -> None:
    """Have the pool replace a connection that has ended, and all older ones."""
    if has_ended(connection.driver_connection):
        raise InvalidatePoolError("the connection has ended")


def has_ended(idle: "psycopg.AsyncConnection[Any] | psycopg.Connection[Any]") -> bool:
    """Whether an idle connection has ended: the server sends nothing on it until it ends it."""
    if idle.closed:
        return True
    socket = poll()
    socket.register(idle.fileno(), POLLIN)
    return bool(socket.poll(0))


def connection_parameters(url: URL) -> dict[str, Any]:
    """Return the parameters of a URL as keyword arguments for psycopg."""
    return url.translate_connect_args(username="user", database="dbname") | dict(url.query)


def make_database(engine: AsyncEngine) -> Database:
    """Make the database from an engine. Objects stay readable after the commit."""
    return async_sessionmaker(engine, expire_on_commit=False)
