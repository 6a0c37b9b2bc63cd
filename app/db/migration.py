"""Brings the database's schema up to date. Every process does so when it starts."""

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from app.db.database import DatabaseUrlError
from app.errors import DATABASE_DOWN
from app.logs import RepeatedLog
from environment.first_line import first_line

if TYPE_CHECKING:
    from alembic.config import Config

_START_S = 30.0
"""How long a database that starts at the same time may take."""
_LOCK = 0x6C6F6F70
"""Any number that nobody else uses as an advisory lock in this database."""

log = structlog.get_logger(__name__)


class SchemaError(Exception):
    """The database's schema is not one that this version knows."""


async def migrate_when_up(database: AsyncEngine) -> None:
    """Wait for a database that starts at the same time, then migrate. Raises DatabaseUrlError, SchemaError."""
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
        said = first_line(error.__cause__ or error)
        raise DatabaseUrlError(f"the database was unreachable for {_START_S:.0f} s: {said}") from error


async def migrate(engine: AsyncEngine) -> None:
    """Bring the schema to this version, in one transaction; services that start at once take turns.

    Raises SchemaError if the database was made by a newer version.
    """
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL statement_timeout = 0"))
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    if _current(connection) == newest():
        return
    from alembic import command  # a quarter of a second, for which a restarted service would wait
    from alembic.util import CommandError

    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SchemaError(
            f"the database was created by a newer version of learnloop; update this installation ({error})"
        ) from error


def _current(connection: Connection) -> str | None:
    """The database's revision; None before the first."""
    if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def newest() -> str:
    """The revision of this version, with which the name of the last script begins."""
    return max(path.name for path in (scripts() / "versions").glob("[0-9]*.py")).split("_")[0]


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(scripts()))
    return config


def scripts() -> Path:
    """Alembic's scripts: in the repository, or among the data files of the installed package."""
    places = (Path(__file__).parents[2] / "alembic", Path(sysconfig.get_path("data"), "share/learnloop/alembic"))
    return next(place for place in places if (place / "env.py").is_file())
