"""The database: engine and sessions. Postgres only, driver psycopg 3."""

from select import POLLIN, poll

from sqlalchemy import URL, make_url
from sqlalchemy.engine.interfaces import AdaptedConnection
from sqlalchemy.event import listen
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from app.db import json_text

Sessions = async_sessionmaker[AsyncSession]

SERVER_SETTINGS = {
    "application_name": "learnloop",
    "timezone": "UTC",
    "statement_timeout": "15000",
    "idle_in_transaction_session_timeout": "30000",
}
"""Of each connection; times are milliseconds."""
_OPTIONS = " ".join(f"-c {name}={value}" for name, value in SERVER_SETTINGS.items())
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Seconds, seconds and probes after which the operating system ends a connection to a machine that is gone."""


class DatabaseUrlError(Exception):
    """DATABASE_URL is not a Postgres URL, or no Postgres takes us there."""


def parse_url(database_url: str) -> URL:
    """The URL for psycopg. Raises DatabaseUrlError, which never shows the URL: it may hold a password."""
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
    """An engine with a small pool: several services and tools share one server's connections.

    All of them stay open: one that is opened for a request and closed after it costs more than the request. What the
    server has closed is seen without asking it: a ping costs a third of a short transaction.
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
    """Have the pool open another connection in place of one that has ended, and of all older ones. The server says
    nothing on one that rests, but that it ends."""
    resting = connection.driver_connection
    if resting.closed:
        raise InvalidatePoolError("the connection is closed")
    socket = poll()
    socket.register(resting.fileno(), POLLIN)
    if socket.poll(0):
        raise InvalidatePoolError("the server has closed the connection")


def make_sessions(engine: AsyncEngine) -> Sessions:
    """Sessions whose objects stay readable after the commit."""
    return async_sessionmaker(engine, expire_on_commit=False)
