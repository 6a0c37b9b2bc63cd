"""The embedded Postgres starts again, whatever happened to the start before."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from app.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from tests.conditions import until

_START = """
import asyncio, sys
from pathlib import Path
from app.embedded_postgres import EmbeddedPostgres

async def main():
    await EmbeddedPostgres(Path(sys.argv[1])).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def _answer(server: EmbeddedPostgres) -> object:
    conninfo = f"host='{server.url.query['host']}' user=postgres dbname=postgres"
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        row = await (await connection.execute("SELECT 41 + 1")).fetchone()
        return row and row[0]


async def _starts(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    try:
        assert await _answer(server) == 42
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param(lambda d: any(d.glob("postgres.unfinished-*")), id="directory made"),
        pytest.param(lambda d: any(d.glob("postgres.unfinished-*/PG_VERSION")), id="initdb begun"),
        pytest.param(lambda d: any(d.glob("postgres.unfinished-*/base/1/*")), id="initdb under way"),
        pytest.param(lambda d: (d / "postgres").exists(), id="renamed"),
        pytest.param(lambda d: (d / "postgres" / "postmaster.pid").exists(), id="server starting"),
    ],
)
async def test_a_killed_first_start_leaves_nothing_in_the_way(data_dir: Path, reached: Callable[[Path], bool]) -> None:
    starting = await asyncio.create_subprocess_exec(sys.executable, "-c", _START, str(data_dir), start_new_session=True)
    deadline = time.monotonic() + 30
    while not reached(data_dir):  # spinning, to hit the moment
        assert time.monotonic() < deadline
    os.killpg(starting.pid, signal.SIGKILL)
    await starting.wait()
    await _starts(data_dir)
    assert not list(data_dir.glob("postgres.unfinished-*"))


async def test_the_server_ends_with_its_owner_and_the_data_stay(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    pid = int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])
    conninfo = f"host='{server.url.query['host']}' user=postgres dbname=postgres"
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    await server.stop()
    assert not psutil.pid_exists(pid)
    await server.start()
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        assert await (await connection.execute("SELECT n FROM kept")).fetchone() == (7,)
    await server.stop()


async def test_a_pid_file_of_another_process_is_not_believed(data_dir: Path) -> None:
    await _starts(data_dir)
    pid_file = data_dir / "postgres" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{data_dir / 'postgres'}\n1700000000\n5432\n\n\n1 1\nready\n")
    await _starts(data_dir)
    pid_file.write_text("torn")
    await _starts(data_dir)


async def test_a_killed_server_is_started_again(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    try:
        pid_file = data_dir / "postgres" / "postmaster.pid"
        first = int(pid_file.read_text().splitlines()[0])
        os.kill(first, signal.SIGKILL)

        def replaced() -> bool:
            lines = pid_file.read_text().splitlines() if pid_file.exists() else []
            return len(lines) > 7 and int(lines[0]) != first and lines[7].strip() == "ready"

        await until(replaced)
        assert await _answer(server) == 42
    finally:
        await server.stop()


async def test_a_path_too_long_for_a_socket_is_no_obstacle(data_dir: Path) -> None:
    long = data_dir / ("d" * 120)
    long.mkdir()
    await _starts(long)


async def test_somebody_elses_directory_is_left_alone(data_dir: Path) -> None:
    (data_dir / "postgres").mkdir()
    (data_dir / "postgres" / "precious").write_text("data")
    with pytest.raises(EmbeddedPostgresError, match="move it away"):
        await EmbeddedPostgres(data_dir).start()
    assert (data_dir / "postgres" / "precious").read_text() == "data"
