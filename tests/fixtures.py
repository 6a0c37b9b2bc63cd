"""Fixtures for all tests."""

import asyncio
import gc
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import certifi
import psycopg
import pytest
import structlog
from hypothesis import settings
from sqlalchemy import URL
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.ext.asyncio import create_async_engine
from ulid import ULID

import learnloop_service.app.db.database
from learnloop_service.app.db.database import make_engine
from learnloop_service.app.db.migration import migrate
from learnloop_service.app.processes.postgres import EmbeddedPostgres
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from tests.fakes import art_patch, forked_learnloop
from tests.fakes.forked_engine import start_fork_server

os.umask(_UMASK := os.umask(0o022))
_MEMORY_DISK = Path("/dev/shm")
_PLENTY = 4 << 30
"""Free bytes that the memory disk must have. The tests use about a tenth of that at a time."""

if "TMPDIR" not in os.environ and _MEMORY_DISK.is_dir() and shutil.disk_usage(_MEMORY_DISK).free > _PLENTY:
    # Each test has a database, which is 300 new files. On a disk, they take most of a small test's time.
    os.environ["TMPDIR"] = str(_MEMORY_DISK)
    tempfile.tempdir = None

set_cpu_mode()  # the engine must be as exact in this process as in its own
# OpenMP reads it once, when torch is imported: threads of forks that spin while they wait burn the other tests' time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Run few examples before a commit, and without deadlines, because machines have other work. `--hypothesis-profile
# nightly` runs more.
settings.register_profile("commit", max_examples=20, deadline=None)
settings.register_profile("nightly", max_examples=1_000, deadline=None)
settings.load_profile("commit")


@pytest.fixture(autouse=True)
def umask() -> None:
    """Restore the mask that commands in this process have changed, also those of fixtures that live longer."""
    os.umask(_UMASK)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Undo ART's patch before any fixture runs."""
    art_patch.undo()


MIGRATED = "migrated"
"""Name of the database with the newest schema."""
_MANY = 1_000
"""Number of tests of which some surely need everything."""
_NOT_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
"""Settings that make data survive a crash of the machine, which no test on a shared server is about."""


# While a test invokes a command in its own process, `sys.stdout` and `sys.stderr` are the command's. A service in the
# same process must not log into its output, so logs go to the file descriptor, which pytest captures as well.
_standard_error = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
# Format of logs before they are configured: without colours and rich tracebacks, which take long to draw.
structlog.configure(
    processors=[structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)],
    logger_factory=structlog.PrintLoggerFactory(_standard_error),
)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt imported modules from garbage collection, which would take a tenth of the tests' time."""
    if session.config.getoption("workers") > 1 and len(session.items) > _MANY:
        from tests.fakes import preloaded_service  # noqa: F401  # once for all workers, and for what they fork
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> None:
    """Fork further processes from this one in its current state, before anything has run in it."""
    start_fork_server()


@pytest.fixture(scope="session", autouse=True)
def forked_commands(fork_server: None) -> Iterator[None]:
    with forked_learnloop.ended_after():
        yield


@pytest.fixture
def forked_services() -> Iterator[None]:
    """Fork the services that the test's process starts, and their engines, whose imports take seconds."""
    with forked_learnloop.services():
        yield


@pytest.fixture(scope="session", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust a single certificate authority. Every HTTP client reads all of them, which takes longer than a local
    request, and no test connects to an outside server."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(first + end)
    os.environ["SSL_CERT_FILE"] = str(file)  # for child processes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(file))  # for clients that ignore the environment
        yield


@pytest.fixture(scope="session", autouse=True)
def one_cache_of_statements() -> Iterator[None]:
    """Share compiled statements between database engines. Each service has its own engine, and compiling every
    statement again took a fifth of the time of the service's tests."""
    dialect = PGDialectAsync_psycopg
    make = partial(create_async_engine, execution_options={"compiled_cache": {}})
    with pytest.MonkeyPatch.context() as patch:
        # Dialects are part of the cache's keys, and these are all alike.
        patch.setattr(dialect, "__hash__", lambda self: hash(type(self)))
        patch.setattr(dialect, "__eq__", lambda self, other: type(self) is type(other))
        patch.setattr(learnloop_service.app.db.database, "create_async_engine", make)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """Run a real Postgres for the session, with a migrated database that others are copied from. It runs on its own
    event loop, because each test has another one."""
    directory = tempfile.TemporaryDirectory(prefix="learnloop-test-")
    server = EmbeddedPostgres(Path(directory.name))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="postgres")
    thread.start()

    def run(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(timeout=60)

    try:
        run(server.start())
        run(_prepare(server.url))
        yield server.url
    finally:
        run(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        directory.cleanup()


async def _prepare(server: URL) -> None:
    async with await psycopg.AsyncConnection.connect(_conninfo(server), autocommit=True) as admin:
        for setting in _NOT_DURABLE:
            await admin.execute(f"ALTER SYSTEM SET {setting} = off".encode())
        await admin.execute("SELECT pg_reload_conf()")
        await admin.execute(f"CREATE DATABASE {MIGRATED}".encode())
    engine = make_engine(server.set(database=MIGRATED))
    await migrate(engine)
    await engine.dispose()


def _conninfo(server: URL) -> str:
    return f"host='{server.query['host']}' user=postgres dbname=postgres"


@pytest.fixture
async def database_url(postgres: URL) -> AsyncIterator[str]:
    """A database for one test, with the newest schema and no rows."""
    async with database(postgres, MIGRATED) as url:
        yield url


@pytest.fixture
async def empty_database_url(postgres: URL) -> AsyncIterator[str]:
    """A database for one test, without a schema."""
    async with database(postgres, "template1") as url:
        yield url


@asynccontextmanager
async def database(server: URL, template: str, *, keep: bool = False) -> AsyncIterator[str]:
    """Copy the database `template`, which must have no connections, and yield the URL of the copy. With `keep`, the
    copy exists until the server stops."""
    name = f"t{ULID()}".lower()
    async with await psycopg.AsyncConnection.connect(_conninfo(server), autocommit=True) as admin:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())
        yield server.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
        if not keep:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A fresh, empty data directory. It is not below pytest's own, which any other pytest run by root closes to the
    account that Postgres then uses."""
    with tempfile.TemporaryDirectory(prefix="learnloop-test-") as directory:
        yield Path(directory)
