"""The database: a pool of connections, and transactions on it. Postgres only, driver psycopg 3."""

from select import POLLIN, poll

from sqlalchemy import URL, make_url
from sqlalchemy.engine.interfaces import AdaptedConnection
from sqlalchemy.event import listen
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from app.db import json_text

Database = async_sessionmaker[AsyncSession]
"""Makes transactions: `async with database.begin() as tx` to write, `async with database() as tx` to read."""

SERVER_SETTINGS = {
    "application_name": "learnloop",
    "timezone": "UTC",
    "statement_timeout": "15000",
    "idle_in_transaction_session_timeout": "30000",
}
"""Settings of every connection. Times are in milliseconds."""
_OPTIONS = " ".join(f"-c {name}={value}" for name, value in SERVER_SETTINGS.items())
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


def make_engine(url: URL) -> AsyncEngine:
    """Make an engine with a small pool, because several services and tools share the server's connections.

    All connections stay open: opening one for a request and closing it afterwards would cost more than the request.
    A connection that the server has closed is noticed without a ping, which costs a third of a short transaction.
    """
    engine = create_async_engine(
        url,
        pool_size=7,
        max_overflow=0,
        pool_timeout=10,
        pool_recycle=600,
        json_serializer=json_text.dumps,
        json_deserializer=json_text.loads,
        connect_args={"connect_timeout": 10, "options": _OPTIONS, **_KEEPALIVE},
    )
    listen(engine.sync_engine, "checkout", _replace_if_closed)
    return engine


def _replace_if_closed(connection: AdaptedConnection, *_: object) -> None:
    """Have the pool replace a connection that has ended, and all older ones.

    On an idle connection the server sends nothing until it ends it.
    """
    idle = connection.driver_connection
    if idle.closed:
        raise InvalidatePoolError("the connection is closed")
    socket = poll()
    socket.register(idle.fileno(), POLLIN)
    if socket.poll(0):
        raise InvalidatePoolError("the server has closed the connection")


def make_database(engine: AsyncEngine) -> Database:
    """Make the database from an engine. Objects stay readable after the commit."""
    return async_sessionmaker(engine, expire_on_commit=False)
