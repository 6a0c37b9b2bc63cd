"""The database behind the real PgBouncer, and databases that cannot hold what the service stores."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, make_url, text

from learnloop_service.app.agent_sessions.batched_calls import BatchedCalls
from learnloop_service.app.db import connecting
from learnloop_service.app.db.connecting import connect, connect_blocking, is_pooled
from learnloop_service.app.db.database import DatabaseUrlError, make_database, make_engine, parse_url
from learnloop_service.app.db.direct_connection import DirectConnection
from learnloop_service.app.db.migration import SchemaError, migrate
from tests.fakes.pooler import PGBOUNCER, pooled
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="there is no PgBouncer: apt-get install pgbouncer")
_IGNORES = "ignore_startup_parameters=options"


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@pytest.fixture(params=[(), (_IGNORES,)], ids=["refuses options", "ignores options"])
def pooler(database_url: str, data_dir: Path, request: pytest.FixtureRequest) -> Iterator[URL]:
    """Two connections of the server, each for one transaction at a time."""
    with pooled(make_url(database_url), data_dir, *request.param) as url:
        yield parse_url(_text(url))


async def _prepared(pooler: URL) -> list[int]:
    """How many statements are prepared on the server's connections that two transactions meet at the same time."""
    async with await connect(pooler) as one, await connect(pooler) as other, one.transaction(), other.transaction():
        counts = []
        for connection in (one, other):
            row = await (await connection.execute("SELECT count(*) FROM pg_prepared_statements")).fetchone()
            assert row is not None
            counts.append(row[0])
        return counts


@needs_pgbouncer
async def test_statements_that_meet_other_connections_are_not_prepared(pooler: URL) -> None:
    engine = make_engine(pooler)
    database, direct = make_database(engine), DirectConnection(pooler)

    async def work(number: int) -> None:
        for _ in range(8):  # psycopg prepares the fifth of the same
            async with database.begin() as tx:
                assert (await tx.execute(text("SELECT :n + 1"), {"n": number})).scalar_one() == number + 1
                settings = "current_setting('statement_timeout'), current_setting('TimeZone')"
                assert (await tx.execute(text(f"SELECT {settings}"))).one() == ("15s", "UTC")
            assert await direct.execute("SELECT %(n)s::int", {"n": number}) == [(number,)]

    try:
        await asyncio.gather(*map(work, range(12)))
        assert await _prepared(pooler) == [0, 0]
        async with database.begin() as tx:
            assert (await tx.execute(text("SELECT current_setting('client_encoding')"))).scalar_one() == "UTF8"
    finally:
        await direct.close()
        await engine.dispose()


@needs_pgbouncer
async def test_a_setting_does_not_stay_on_the_servers_connection(pooler: URL) -> None:
    engine = make_engine(pooler)
    async with make_database(engine).begin() as tx:
        await tx.execute(text("SELECT 1"))
    await engine.dispose()
    async with await connect(pooler) as connection:
        row = await (await connection.execute("SELECT current_setting('statement_timeout')")).fetchone()
    assert row == ("0",), "another client of the pooler would have it"


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_runs_and_their_events_through_a_pooler(
    database_url: str, data_dir: Path, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    size = 2 if mode == "transaction" else 40  # a session holds its connection
    with pooled(make_url(database_url), data_dir, mode=mode, size=size) as url:
        for direct, warned in ((None, True), (database_url, False)):
            folder = data_dir / f"service {direct is None}"
            settings = settings_for(folder, f"{_text(url)}&pgbouncer=true", direct_database_url=direct)
            async with served(settings, ScriptedLoop()) as client:
                started = [(await client.post("/learn-loop", json={"iterations": 2})).json() for _ in range(3)]
                for accepted in started:
                    run = await run_with(client, accepted["run_id"], "completed", "failed")
                    assert run["status"] == "completed", run["error"]
                    events = (await client.get(run["links"]["events"])).json()["items"]
                    assert events[-1]["type"] == "run.completed"
            logged = "".join(capfd.readouterr())
            assert ("set DIRECT_DATABASE_URL" in logged) == warned
        if mode == "transaction":
            assert await _prepared(parse_url(_text(url))) == [0, 0]


async def test_a_server_keeps_its_settings_and_its_prepared_statements(database_url: str) -> None:
    """Without a pooler nothing is slower: no settings in each transaction, and statements are prepared."""
    engine = make_engine(parse_url(f"{database_url}&options=-c%20search_path%3Dpg_catalog"))
    try:
        async with make_database(engine)() as tx:
            for _ in range(7):
                await tx.execute(text("SELECT :n + 1"), {"n": 1})
            names = ("statement_timeout", "TimeZone", "application_name", "search_path")
            values = (await tx.execute(text(f"SELECT {', '.join(f'current_setting({n!r})' for n in names)}"))).one()
            assert values == ("15s", "UTC", "learnloop", "pg_catalog"), "the URL's own options are kept"
            assert (await tx.execute(text("SELECT count(*) FROM pg_prepared_statements"))).scalar_one() > 0
    finally:
        await engine.dispose()


REFUSALS = [
    "FATAL:  unsupported startup parameter: options",  # PgBouncer 1.18
    "FATAL:  unsupported startup parameter in options: statement_timeout",  # PgBouncer 1.20, Neon
    "ERROR:  Feature not supported: RDS Proxy currently doesn't support command-line options.",
]


@pytest.mark.parametrize("said", REFUSALS)
async def test_a_pooler_of_any_vendor_that_refuses_options_is_asked_without(
    database_url: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_refusing", set())
    attempts: list[Any] = []
    whole, blocking = psycopg.AsyncConnection.connect, psycopg.connect

    def refuse(options: Any) -> None:
        attempts.append(options)
        if options is not None:
            raise psycopg.OperationalError(said)

    async def refusing(**parameters: Any) -> Any:
        refuse(parameters.get("options"))
        return await whole(**parameters)

    def refusing_too(**parameters: Any) -> Any:
        refuse(parameters.get("options"))
        return blocking(**parameters)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refusing)
    monkeypatch.setattr(psycopg, "connect", refusing_too)
    url = parse_url(database_url)
    for _ in range(2):
        connection = await connect(url)
        assert not is_pooled(connection)
        await connection.close()
    connect_blocking(url, {"statement_timeout": "1000"}).close()
    assert [options is None for options in attempts] == [False, True, True, True], "it is asked once"


async def test_another_error_is_no_refusal(database_url: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        await connect(parse_url(database_url).set(database="nowhere"))


@asynccontextmanager
async def _database(server: URL, definition: str) -> AsyncIterator[URL]:
    conninfo = f"host='{server.query['host']}' user=postgres dbname=postgres"
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as admin:
        await admin.execute(f"CREATE DATABASE odd {definition}".encode())
        try:
            yield server.set(database="odd")
        finally:
            await admin.execute(b"DROP DATABASE odd WITH (FORCE)")


async def _migrated(url: URL) -> None:
    engine = make_engine(url)
    try:
        await migrate(engine)
    finally:
        await engine.dispose()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "WIN1252", "EUC_JP"])
async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: URL, encoding: str) -> None:
    definition = f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
    async with _database(postgres, definition) as url:
        with pytest.raises(SchemaError, match=f"odd has the encoding {encoding}.*ENCODING 'UTF8'"):
            await _migrated(url)


async def _execute(url: URL, *statements: str) -> None:
    async with await connect(url) as connection:
        for statement in statements:
            await connection.execute(statement.encode())


async def test_a_user_without_rights_is_told_which_it_needs(postgres: URL) -> None:
    async with _database(postgres, "") as url:
        await _execute(url, "CREATE ROLE guest LOGIN")
        guest = url.set(username="guest")
        try:
            with pytest.raises(SchemaError, match=r'guest may not make tables in the schema public.*TO "guest"'):
                await _migrated(guest)
            await _execute(url, "CREATE SCHEMA own AUTHORIZATION guest")
            with pytest.raises(SchemaError, match="no schema of the search_path exists"):
                await _migrated(guest.update_query_dict({"options": "-c search_path=nowhere"}))
            await _migrated(guest.update_query_dict({"options": "-c search_path=own"}))
            await _migrated(url)
            await _execute(url, "GRANT ALL ON SCHEMA public TO guest", "GRANT SELECT ON alembic_version TO guest")
            await _migrated(guest)  # nothing is left to do
            await _execute(url, "DELETE FROM alembic_version", "DROP SCHEMA own CASCADE")
            await _execute(url, "GRANT ALL ON alembic_version TO guest")
        finally:
            await _execute(url, "DROP OWNED BY guest CASCADE", "DROP ROLE guest")


@pytest.mark.parametrize(
    "parameters",
    ["pgbouncer=true", "pgbouncer=true&connection_limit=1", "statement_cache_size=0", "supa=base-pooler.x"],
)
def test_what_tells_other_clients_of_a_pooler_is_taken(parameters: str) -> None:
    assert parse_url(f"postgresql://a@b/c?{parameters}&sslmode=require").query == {"sslmode": "require"}


@pytest.mark.parametrize("parameter", ["schema", "ssl", "sslaccept", "uselibpqcompat"])
def test_a_parameter_that_postgres_does_not_know_is_named(parameter: str) -> None:
    with pytest.raises(
        DatabaseUrlError, match=f"has the parameter {parameter}, which Postgres does not know"
    ) as refused:
        parse_url(f"postgresql://user:canary@host/name?{parameter}=x")
    assert "canary" not in str(refused.value)


@needs_pgbouncer
async def test_calls_of_sessions_are_claimed_through_a_pooler(pooler: URL) -> None:
    """The fast path's statements are sent whole each time."""
    batched = BatchedCalls(pooler)
    try:
        for _ in range(6):
            assert await batched.delivered([("none", 1, "digest", 0)])
        assert await _prepared(pooler) == [0, 0]
    finally:
        await batched.close()
