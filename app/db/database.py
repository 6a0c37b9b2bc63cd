"""The database: a pool of connections, and transactions on it. Postgres only, driver psycopg 3."""

from functools import partial
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.engine.interfaces import AdaptedConnection
from sqlalchemy.event import listen
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from learnloop_service.app.db import json_text
from learnloop_service.app.db.connecting import connect, is_pooled, settings_of_transaction

if TYPE_CHECKING:  # loaded with the first connection
    import psycopg

Database = async_sessionmaker[AsyncSession]
"""Makes transactions: `async with database.begin() as tx` to write, `async with database() as tx` to read."""

_OF_OTHER_CLIENTS = frozenset(
    {
        *("connection_limit", "pgbouncer", "pool_timeout", "prepareThreshold", "prepared_statements"),
        *("statement_cache_size", "supa", "workaround"),
    }
)
"""Parameters that tell other clients about a pooler, which is recognised without them."""


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
    url = url.difference_update_query(_OF_OTHER_CLIENTS)
    if unknown := sorted(url.query.keys() - _parameter_names()):
        raise DatabaseUrlError(
            f"DATABASE_URL has the parameter {', '.join(unknown)}, which Postgres does not know: remove it"
        )
    return url.set(drivername="postgresql+psycopg")


def _parameter_names() -> set[str]:
    from psycopg.pq import Conninfo

    return {option.keyword.decode() for option in Conninfo.get_defaults()}


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
        connect_args={"async_creator_fn": partial(_connect, url)},
    )
    listen(engine.sync_engine, "checkout", _replace_if_closed)
    listen(engine.sync_engine, "begin", _make_settings)
    return engine


async def _connect(url: URL, context: Any = None, **_: Any) -> "psycopg.AsyncConnection[Any]":
    """Open a connection for SQLAlchemy, which gives the URL's parameters again, and how to convert values."""
    connection = await connect(url, connect_timeout=10, context=context)
    await connection.set_autocommit(False)
    return connection


def _make_settings(connection: Connection) -> None:
    """Make the settings for a transaction through a pooler, which forgets those of a connection."""
    if is_pooled(connection.connection.driver_connection):
        connection.exec_driver_sql(settings_of_transaction())


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


def make_database(engine: AsyncEngine) -> Database:
    """Make the database from an engine. Objects stay readable after the commit."""
    return async_sessionmaker(engine, expire_on_commit=False)
