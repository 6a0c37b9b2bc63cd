"""The schema: one migration path, in step with the rows' classes."""

import asyncio

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from learnloop_service.app.db.database import make_engine, parse_url
from learnloop_service.app.db.migration import SchemaError, migrate, scripts
from tests.connections import end_connections


async def test_migrations_make_exactly_what_the_rows_need(empty_database_url: str) -> None:
    engine = make_engine(parse_url(empty_database_url))
    await migrate(engine)

    def check(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(scripts()))
        config.attributes["connection"] = connection
        command.check(config)  # raises if autogenerate would find a difference
        command.downgrade(config, "base")

    async with engine.begin() as connection:
        await connection.run_sync(check)
        remaining = await connection.execute(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'")
        )
        assert remaining.scalar_one() == 0
    await engine.dispose()


async def test_services_that_start_at_once_migrate_once(empty_database_url: str) -> None:
    engines = [make_engine(parse_url(empty_database_url)) for _ in range(4)]
    await asyncio.gather(*map(migrate, engines))
    async with engines[0].connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM alembic_version"))).scalar_one() == 1
    for engine in engines:
        await engine.dispose()


async def test_a_newer_schema_is_refused(empty_database_url: str) -> None:
    engine = make_engine(parse_url(empty_database_url))
    await migrate(engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match="newer version of learnloop"):
        await migrate(engine)
    await engine.dispose()


async def test_a_connection_that_the_server_has_closed_is_replaced(database_url: str) -> None:
    engine = make_engine(parse_url(database_url))
    backend_pid = text("SELECT pg_backend_pid()")
    async with engine.connect() as connection:
        first = (await connection.execute(backend_pid)).scalar_one()
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as admin:
        assert first in await end_connections(admin, admin.info.dbname)
    async with engine.connect() as connection:
        assert (await connection.execute(backend_pid)).scalar_one() != first
    await engine.dispose()
