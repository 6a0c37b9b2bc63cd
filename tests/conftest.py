"""Fixtures that all tests may use."""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL
from ulid import ULID

from app.processes.postgres import EmbeddedPostgres
from training.engine.cpu_mode import set_cpu_mode

set_cpu_mode()  # tests that run the engine in this process want it as exact as in its own


@pytest.fixture(scope="session")
def postgres() -> Iterator[URL]:
    """A real Postgres for the session. It lives on an event loop of its own, because each test has another."""
    directory = tempfile.TemporaryDirectory(prefix="learnloop-test-")
    server = EmbeddedPostgres(Path(directory.name))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="postgres")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(timeout=60)
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(timeout=60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        directory.cleanup()


@pytest.fixture
async def database_url(postgres: URL) -> AsyncIterator[str]:
    """An empty database for one test."""
    name = f"t{ULID()}".lower()
    conninfo = f"host='{postgres.query['host']}' user=postgres dbname=postgres"
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as admin:
        await admin.execute(f"CREATE DATABASE {name}".encode())
        yield postgres.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A fresh, empty data directory. Not below pytest's own one: run as root, every other pytest closes that to the
    account that Postgres then runs as."""
    with tempfile.TemporaryDirectory(prefix="learnloop-test-") as directory:
        yield Path(directory)
