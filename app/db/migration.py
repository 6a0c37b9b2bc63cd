"""Brings the database's schema up to date. Every process does this when it starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from learnloop_service.app.db.database import DatabaseUrlError
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.environment.first_line import first_line
from learnloop_service.environment.installation import shipped

if TYPE_CHECKING:
    from alembic.config import Config

_START_S = 30.0
"""Longest wait for a database that is starting up at the same time as this process."""
_LOCK = 0x6C6F6F70
"""Key of the advisory lock for migrations: any number that nothing else locks in this database."""

log = structlog.get_logger(__name__)


_FITNESS = text(
    "SELECT current_database() AS name, current_user AS role, current_setting('server_encoding') AS encoding, "
    "current_schema() AS schema, has_schema_privilege(current_schema(), 'CREATE') AS may_create"
)


class SchemaError(Exception):
    """The database's schema is unknown to this version, or cannot be made. The message says what to do."""


async def migrate_when_up(database: AsyncEngine) -> None:
    """Wait until the database accepts connections, then migrate. Raises DatabaseUrlError, SchemaError."""
    repeated = RepeatedLog(log)
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(DATABASE_DOWN),
        wait=wait_fixed(1),
        stop=stop_after_delay(_START_S),
        before_sleep=lambda _: repeated.warning("waiting for the database"),
        reraise=True,
    )
    try:
        async for attempt in retrying:
            with attempt:
                await migrate(database)
    except DATABASE_DOWN as error:
        message = first_line(error.__cause__ or error)
        message = f"the database was unreachable for {_START_S:.0f} s: {message}; start it, or correct DATABASE_URL"
        raise DatabaseUrlError(message) from error


async def migrate(engine: AsyncEngine) -> None:
    """Bring the schema to this version in one transaction. Processes that start at the same time take turns.

    Raises SchemaError if a newer version created the database, or if it cannot hold the schema or its texts.
    """
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL statement_timeout = 0"))
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        await connection.run_sync(_upgrade)


def _require_fit(fitness: Any) -> None:
    """Raise SchemaError, with what to do, if the database cannot hold every text."""
    if fitness.encoding != "UTF8":
        raise SchemaError(
            f"the database {fitness.name} has the encoding {fitness.encoding}, which cannot hold every text: make "
            "another with CREATE DATABASE learnloop TEMPLATE template0 ENCODING 'UTF8', and name it in DATABASE_URL"
        )


def _require_right(fitness: Any) -> None:
    """Raise SchemaError, with what to do, if the database's user cannot make tables."""
    if fitness.schema is None:
        raise SchemaError(f"no schema of the search_path exists in the database {fitness.name}: CREATE SCHEMA public")
    if not fitness.may_create:
        raise SchemaError(
            f"the user {fitness.role} may not make tables in the schema {fitness.schema} of the database "
            f"{fitness.name}: its owner can allow it with "
            f'GRANT USAGE, CREATE ON SCHEMA "{fitness.schema}" TO "{fitness.role}"'
        )


def _upgrade(connection: Connection) -> None:
    fitness = connection.execute(_FITNESS).one()
    _require_fit(fitness)
    if _current_revision(connection) == newest():
        return
    _require_right(fitness)
    # imported late: it takes a quarter of a second, which a restart with an up-to-date schema should not pay
    from alembic import command
    from alembic.util import CommandError

    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SchemaError(
            f"the database was created by a newer version of learnloop; update this installation ({error})"
        ) from error
    except ProgrammingError as error:
        if not isinstance(error.orig, InsufficientPrivilege):
            raise
        raise SchemaError(
            f"the database's user may not change its tables: {first_line(error.orig)}; name their owner in DATABASE_URL"
        ) from error


def _current_revision(connection: Connection) -> str | None:
    """Return the database's revision, or None before the first migration."""
    if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def newest() -> str:
    """Return the revision of this version, taken from the file name of the last migration script."""
    return max(path.name for path in (scripts() / "versions").glob("[0-9]*.py")).split("_")[0]


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(scripts()))
    return config


def scripts() -> Path:
    """Return the folder of Alembic's scripts."""
    return shipped("alembic")
