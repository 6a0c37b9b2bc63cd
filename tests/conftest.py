"""Fixtures that all tests may use."""

import asyncio
import gc
import os
import shutil
import sys
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

import app.db.database
from app.db.database import make_engine
from app.db.migration import migrate
from app.processes.postgres import EmbeddedPostgres
from tests.fakes import forked_learnloop
from tests.fakes.forked_engine import start_fork_server
from training.engine.cpu_mode import set_cpu_mode

_MEMORY_DISK = Path("/dev/shm")
_PLENTY = 4 << 30
"""Bytes. What is there at one time is a tenth of that."""

if "TMPDIR" not in os.environ and _MEMORY_DISK.is_dir() and shutil.disk_usage(_MEMORY_DISK).free > _PLENTY:
    # Each test has a database, which is 300 new files: on a disk they take most of a small test's time.
    os.environ["TMPDIR"] = str(_MEMORY_DISK)
    tempfile.tempdir = None

set_cpu_mode()  # tests that run the engine in this process want it as exact as in its own

# Few examples before a commit; no deadlines, because machines have other work. `--hypothesis-profile nightly` has more.
settings.register_profile("commit", max_examples=20, deadline=None)
settings.register_profile("nightly", max_examples=1_000, deadline=None)
settings.load_profile("commit")

pytest_plugins = ["tests.workers"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Transformers as it comes, before any fixture: the engine's process never imports art, but that of the tests does,
    and `import art` replaces a function by one for another version, with which forward passes of some models fail."""
    masks: Any = sys.modules.get("transformers.masking_utils")
    patches: Any = sys.modules.get("art.transformers.patches")
    if masks and patches:
        masks._preprocess_mask_arguments = patches._preprocess_mask_arguments


MIGRATED = "migrated"
"""The database at the newest schema."""
_NOT_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
"""What makes data outlive a crash of the machine, which no test of a shared server is about."""


# What is logged before anybody configures logs: without colours and pictures of tracebacks, which take long to draw.
structlog.configure(
    processors=[structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
)


def pytest_collection_finish() -> None:
    """What was imported stays: to look for garbage in it took a tenth of the tests' time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> None:
    """Processes are forked from this one as it is now, before anything has run in it."""
    start_fork_server()


@pytest.fixture(scope="session", autouse=True)
def forked_commands(fork_server: None) -> Iterator[None]:
    with forked_learnloop.ended_after():
        yield


@pytest.fixture(scope="session", autouse=True)
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every HTTP client reads the certificate authorities, which takes it longer than a local request: here it is one
    authority. No test speaks to a server of the world."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(first + end)
    os.environ["SSL_CERT_FILE"] = str(file)  # for our children
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(file))  # for clients that take nothing from the environment
        yield


@pytest.fixture(scope="session", autouse=True)
def one_cache_of_statements() -> Iterator[None]:
    """Each service has a database engine of its own, which would compile every statement anew: that took a fifth of the
    time of the tests of the service."""
    dialect = PGDialectAsync_psycopg
    make = partial(create_async_engine, execution_options={"compiled_cache": {}})
    with pytest.MonkeyPatch.context() as patch:
        # Part of the cache's keys; they differ in nothing.
        patch.setattr(dialect, "__hash__", lambda self: hash(type(self)))
        patch.setattr(dialect, "__eq__", lambda self, other: type(self) is type(other))
        patch.setattr(app.db.database, "create_async_engine", make)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A real Postgres for the session, with a database at the newest schema that others are copied from. It lives on an
    event loop of its own, because each test has another."""
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
    """A database for one test, with the newest schema and without a row."""
    async with database(postgres, MIGRATED) as url:
        yield url


@pytest.fixture
async def empty_database_url(postgres: URL) -> AsyncIterator[str]:
    """A database for one test, without a schema."""
    async with database(postgres, "template1") as url:
        yield url


@asynccontextmanager
async def database(server: URL, template: str, *, keep: bool = False) -> AsyncIterator[str]:
    """A copy of the database `template`, to which nobody may be connected; its URL. Kept, it ends with the server."""
    name = f"t{ULID()}".lower()
    async with await psycopg.AsyncConnection.connect(_conninfo(server), autocommit=True) as admin:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())
        yield server.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
        if not keep:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A fresh, empty data directory. Not below pytest's own one: run as root, every other pytest closes that to the
    account that Postgres then runs as."""
    with tempfile.TemporaryDirectory(prefix="learnloop-test-") as directory:
        yield Path(directory)
