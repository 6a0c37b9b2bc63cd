"""The embedded Postgres starts again, whatever happened to the start before."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest

from learnloop_service.app.aio.pulse import Pulse
from learnloop_service.app.processes.postgres import EmbeddedPostgres, EmbeddedPostgresError, _processes
from tests.conditions import answered, until
from tests.integration.app.frozen_server import freeze, lives

_START = """
import asyncio, concurrent.futures.thread, os, sys
from pathlib import Path
from learnloop_service.app.aio.pulse import Pulse
from learnloop_service.app.processes.postgres import EmbeddedPostgres

async def main():
    await EmbeddedPostgres(Path(sys.argv[1])).start()
    await asyncio.Event().wait()

if len(sys.argv) > 2:  # as another user
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
asyncio.run(main())
"""
_START_AND_STOP = """
import asyncio, concurrent.futures.thread, os, sys
from pathlib import Path
from learnloop_service.app.aio.pulse import Pulse
from learnloop_service.app.processes import postgres

async def main():
    server = postgres.EmbeddedPostgres(Path(sys.argv[1]))
    await server.start()
    await server.stop()

# unwrapped
os.setgroups([])
os.setgid(0)
os.setuid(int(sys.argv[2]))
asyncio.run(main())
"""
_NOBODY = 65_534
_NAMELESS = 54_321


@pytest.fixture(scope="module")
def stopped_cluster() -> Iterator[Path]:
    """The data directory of a server that was stopped; to make one takes longer than all else here."""
    with tempfile.TemporaryDirectory(prefix="learnloop-test-") as directory:
        asyncio.run(_starts(Path(directory)))
        yield Path(directory)


@pytest.fixture
def used_dir(stopped_cluster: Path, data_dir: Path) -> Path:
    """A data directory whose server was stopped."""
    subprocess.run(["cp", "--archive", str(stopped_cluster / "postgres"), str(data_dir)], check=True)  # and its owner
    return data_dir


async def _answer(server: EmbeddedPostgres) -> object:
    conninfo = f"host='{server.url.query['host']}' user=postgres dbname=postgres"
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        row = await (await connection.execute("SELECT 41 + 1")).fetchone()
        return row and row[0]


def _pid(data_dir: Path) -> int:
    """The server's, once it is ready; 0 before."""
    lines = _lines(data_dir / "postgres" / "postmaster.pid")
    return int(lines[0]) if len(lines) > 7 and lines[7].strip() == "ready" else 0


def _refuses(data_dir: Path) -> bool:
    """Whether the server runs and recovers, but accepts no connections."""
    lines = _lines(data_dir / "postgres" / "postmaster.pid")
    return len(lines) > 7 and lines[7].strip() == "standby"


def _lines(file: Path) -> list[str]:
    """None while it does not exist, which can change at any time."""
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        return []


def _kill_everything(starting: asyncio.subprocess.Process) -> None:
    """SIGKILL the starting service and all that it has started, which lives in sessions of its own. All are frozen
    first: what was about to start another process would leave that one behind."""
    service = psutil.Process(starting.pid)
    running, frozen, is_still = {service}, set[psutil.Process](), False
    while running or not is_still:
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        frozen |= running
        is_still = all(map(_is_frozen, frozen))
        running = {*service.children(recursive=True)} - frozen
    for process in frozen:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _is_frozen(process: psutil.Process) -> bool:
    """Whether no thread runs any more: one that is in the middle of starting a process stops only after that. A thread
    in the state D waits for a process that it has started, or for a disk."""
    states = set[str]()
    for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with suppress(OSError):
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states <= {*"TtDZX"}


@asynccontextmanager
async def _starting(*arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that starts the server; it is killed at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _START, *map(str, arguments))
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _starts(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    try:
        assert await _answer(server) == 42
    finally:
        await server.stop()


@pytest.mark.long
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
    async with _starting(data_dir) as service:
        deadline = time.monotonic() + 60
        while not reached(data_dir):  # spinning, to hit the moment
            assert time.monotonic() < deadline
        _kill_everything(service)
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


async def test_only_its_own_user_can_reach_it_and_nobody_by_network(used_dir: Path) -> None:
    server = EmbeddedPostgres(used_dir)
    await server.start()
    try:
        postmaster = psutil.Process(_pid(used_dir))
        assert postmaster.net_connections(kind="inet") == []
        for child in postmaster.children():
            with suppress(psutil.NoSuchProcess):  # the launchers' short-lived workers come and go
                assert child.net_connections(kind="inet") == []
        socket_dir = Path(str(server.url.query["host"]))
        for path in (socket_dir, socket_dir / ".s.PGSQL.5432"):
            assert path.stat().st_mode & 0o077 == 0
            assert path.stat().st_uid == postmaster.uids().real
    finally:
        await server.stop()


async def test_it_gets_no_key_of_ours_or_of_a_provider(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEARNLOOP_OPERATOR_KEY", "OPENAI_API_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "a canary")
    server = EmbeddedPostgres(data_dir)
    await server.start()
    try:
        assert "a canary" not in psutil.Process(_pid(data_dir)).environ().values()
    finally:
        await server.stop()


async def test_a_pid_file_of_another_process_is_not_believed(used_dir: Path) -> None:
    pid_file = used_dir / "postgres" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{used_dir / 'postgres'}\n1700000000\n5432\n\n\n1 1\nready\n")
    (used_dir / "postgres" / ".s.PGSQL.5432.lock").write_text(pid_file.read_text())
    await _starts(used_dir)
    pid_file.write_text("torn")
    await _starts(used_dir)


async def test_a_killed_server_is_started_again(used_dir: Path) -> None:
    server = EmbeddedPostgres(used_dir)
    await server.start()
    try:
        pid_file = used_dir / "postgres" / "postmaster.pid"
        first = int(pid_file.read_text().splitlines()[0])
        os.kill(first, signal.SIGKILL)

        def replaced() -> bool:
            lines = _lines(pid_file)
            return len(lines) > 7 and int(lines[0]) != first and lines[7].strip() == "ready"

        await until(replaced)
        assert await _answer(server) == 42
    finally:
        await server.stop()


async def test_the_server_of_a_killed_owner_ends_and_the_next_owners_is_stopped_again(used_dir: Path) -> None:
    async with _starting(used_dir) as service:
        await until(lambda: _pid(used_dir), timeout_s=60)
        orphan = _pid(used_dir)
        service.kill()
        await until(lambda: not psutil.pid_exists(orphan))
    server = EmbeddedPostgres(used_dir)
    await server.start()
    pid = _pid(used_dir)
    await server.stop()
    assert pid not in (0, orphan)
    assert not psutil.pid_exists(pid)


async def test_a_killed_server_that_nobody_has_reaped_is_in_nobodys_way(used_dir: Path) -> None:
    """As in a container without an init: its pid is there for ever."""
    async with _starting(used_dir) as service:
        await until(lambda: _pid(used_dir), timeout_s=60)
        server = psutil.Process(_pid(used_dir))
        service.send_signal(signal.SIGSTOP)  # it reaps no more
        await until(lambda: _is_stopped(service.pid))
        server.kill()
        await until(lambda: server.status() == psutil.STATUS_ZOMBIE)
        await _starts(used_dir)
        assert server.status() == psutil.STATUS_ZOMBIE


def _is_stopped(pid: int) -> bool:
    """Whether all threads of the process are stopped: the one that waits for the server can be the last."""
    threads = psutil.Process(pid).threads()
    return all(psutil.Process(thread.id).status() == psutil.STATUS_STOPPED for thread in threads)


@pytest.mark.parametrize("only_clients", [False, True])
async def test_a_stop_does_not_wait_for_frozen_processes(
    used_dir: Path, monkeypatch: pytest.MonkeyPatch, only_clients: bool
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.postgres._STOP_TIMEOUT_S", 600.0)
    server = EmbeddedPostgres(used_dir)
    await server.start()
    client = await server._connect()
    frozen = [psutil.Process(client.info.backend_pid)] if only_clients else _freeze(used_dir)
    frozen[0].suspend()
    await until(lambda: _is_stopped(frozen[0].pid))
    async with asyncio.timeout(60):
        await server.stop()
    await client.close()
    assert not any(map(lives, frozen))
    await _starts(used_dir)


STOPS_IN_THE_MIDDLE = """
import asyncio, os, signal, sys
from pathlib import Path
import psutil
from learnloop_service.app import server
from learnloop_service.app.processes.postgres import EmbeddedPostgres
from tests.integration.app.frozen_server import freeze
from tests.integration.app.served import settings_for

async def stop_in_the_middle(settings, engine, limit):
    postgres = EmbeddedPostgres(settings.data_dir)
    await postgres.start()
    connections = [await postgres._connect() for _ in range(3)]
    postgres.leave()
    postmaster = postgres._process.pid
    freeze(psutil.Process(postmaster))
    os.kill(postmaster, signal.SIGKILL)  # as a stop does that is then held up on a busy machine
    limit.begin()
    await asyncio.Event().wait()

settings = settings_for(Path(sys.argv[1]), None, engine_url="http://127.0.0.1:9", stop_timeout_s=1.0)
server._run(settings, stop_in_the_middle)
"""


async def test_a_stop_that_takes_too_long_leaves_no_frozen_backends(used_dir: Path) -> None:
    """Once its postmaster is dead, they are no longer descendants of the service."""
    service = await asyncio.create_subprocess_exec(sys.executable, "-c", STOPS_IN_THE_MIDDLE, str(used_dir))
    assert await service.wait() == 1
    await until(lambda: not _processes(used_dir / "postgres"))
    await _starts(used_dir)


async def test_a_start_ends_the_frozen_server_of_a_killed_owner_and_nobody_elses(used_dir: Path) -> None:
    others = EmbeddedPostgres(used_dir / "others")
    (used_dir / "others").mkdir()
    await others.start()
    try:
        async with _starting(used_dir) as service:
            await until(lambda: _pid(used_dir), timeout_s=60)
            frozen = _freeze(used_dir)
            service.kill()
        await _starts(used_dir)
        assert not any(map(lives, frozen))
        assert await _answer(others) == 42
    finally:
        await others.stop()


async def test_a_server_whose_postmaster_was_killed_while_the_others_are_frozen_is_started_again(
    used_dir: Path,
) -> None:
    """Its memory is in use by them, and Postgres does not start beside."""
    server = EmbeddedPostgres(used_dir)
    await server.start()
    try:
        first = _pid(used_dir)
        frozen = _freeze(used_dir)
        os.kill(first, signal.SIGKILL)
        await until(lambda: _pid(used_dir) not in (0, first))
        assert await _answer(server) == 42
        assert not any(map(lives, frozen))
    finally:
        await server.stop()


async def test_a_server_that_takes_no_connections_is_killed_and_started_again(
    used_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.postgres.Pulse", partial(Pulse, period_s=0.05, deadline_s=2.0))
    server = EmbeddedPostgres(used_dir, restart_after_s=0.1)
    await server.start()
    try:
        first = _pid(used_dir)
        os.kill(first, signal.SIGSTOP)
        await until(lambda: _pid(used_dir) not in (0, first))
        await answered(lambda: _answers(server), bool)  # a busy machine may be too slow for it, again
    finally:
        await server.stop()


async def test_a_server_that_accepts_no_connections_is_killed_and_started_again(
    used_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.postgres.Pulse", partial(Pulse, period_s=0.05))
    # Far shorter than a start takes: it comes up because the time doubles.
    server = EmbeddedPostgres(used_dir, restart_after_s=0.01)
    await server.start()
    try:
        first = _pid(used_dir)
        recovers = _recover_for_ever(used_dir)
        os.kill(first, signal.SIGKILL)
        await until(lambda: _refuses(used_dir))
        recovers.unlink()
        await answered(lambda: _answers(server), bool)
    finally:
        await server.stop()


async def test_a_first_start_that_accepts_no_connections_is_made_again(
    used_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.postgres._START_TIMEOUTS_S", [2.0**n for n in range(8)])
    recovers = _recover_for_ever(used_dir)
    server = EmbeddedPostgres(used_dir)
    starting = asyncio.create_task(server.start())
    await until(lambda: _refuses(used_dir))
    recovers.unlink()
    await starting
    try:
        assert await _answer(server) == 42
    finally:
        await server.stop()


async def test_a_server_that_accepts_no_connections_at_any_start_is_ended(
    used_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.processes.postgres._START_TIMEOUTS_S", (0.1, 0.1))
    _recover_for_ever(used_dir)
    with pytest.raises(EmbeddedPostgresError, match=r"accepted no connections within 0 s.*postgres\.killed\.log"):
        await EmbeddedPostgres(used_dir).start()
    assert not _processes(used_dir / "postgres")
    assert (used_dir / "postgres.killed.log").exists()


def _recover_for_ever(data_dir: Path) -> Path:
    """Makes the next server a standby without a primary, which waits for more to recover and refuses connections. It
    is one for as long as the returned file is there when it starts."""
    with (data_dir / "postgres" / "postgresql.auto.conf").open("a") as settings:
        settings.write("hot_standby = off\n")
    signal_file = data_dir / "postgres" / "standby.signal"
    signal_file.touch()
    return signal_file


def _freeze(data_dir: Path) -> list[psutil.Process]:
    """All processes of the server."""
    return freeze(psutil.Process(_pid(data_dir)))


async def _answers(server: EmbeddedPostgres) -> bool:
    try:
        return await _answer(server) == 42
    except psycopg.OperationalError:
        return False


async def test_torn_notes_of_the_packages_own_python_side_are_not_read(used_dir: Path) -> None:
    for folder in (used_dir, used_dir / "postgres"):
        (folder / ".handle_pids.json").write_text('{"pids": [1')
    await _starts(used_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_servers_of_two_users_of_the_machine_are_in_nobodys_way(data_dir: Path) -> None:
    """Both have to put their sockets into the directory for temporary files, which they share."""
    ours, theirs = (data_dir / name / ("d" * 120) for name in ("ours", "theirs"))
    for path in (ours, theirs):
        path.mkdir(parents=True)
    data_dir.chmod(0o755)
    os.chown(theirs, _NOBODY, _NOBODY)
    server = EmbeddedPostgres(ours)
    await server.start()
    try:
        async with _starting(theirs, _NOBODY):
            await until(lambda: _pid(theirs), timeout_s=60)
            assert psutil.Process(_pid(theirs)).uids().real == _NOBODY
            assert await _answer(server) == 42
            orphan = _pid(theirs)
        await until(lambda: not psutil.pid_exists(orphan))
    finally:
        await server.stop()


def _has_nss_wrapper() -> bool:
    with suppress(OSError):
        return bool(ctypes.CDLL("libnss_wrapper.so"))
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_user_without_a_name_has_a_server_or_is_told_the_way_out(data_dir: Path, wrapped: bool) -> None:
    """OpenShift gives each container a number as its user. With nss_wrapper, as in our image, the server runs."""
    theirs = data_dir / "theirs"
    theirs.mkdir()
    data_dir.chmod(0o755)
    os.chown(theirs, _NAMELESS, 0)
    code = (
        _START_AND_STOP
        if wrapped
        else _START_AND_STOP.replace("# unwrapped", "postgres._name_for_initdb = lambda _: {}")
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, str(theirs), str(_NAMELESS)], capture_output=True, text=True, timeout=120
    )
    if wrapped and _has_nss_wrapper():
        assert completed.returncode == 0, completed.stderr
        assert (theirs / "postgres" / "PG_VERSION").stat().st_uid == _NAMELESS
    else:
        assert f"Postgres needs a name for the user ID {_NAMELESS}" in completed.stderr
        assert "set DATABASE_URL" in completed.stderr
        assert not (theirs / "postgres").exists()


async def test_a_path_too_long_for_a_socket_is_no_obstacle(data_dir: Path) -> None:
    long = data_dir / ("d" * 120)
    long.mkdir()
    await _starts(long)


async def test_somebody_elses_directory_is_left_alone(data_dir: Path) -> None:
    (data_dir / "postgres").mkdir()
    (data_dir / "postgres" / "precious").write_text("data")
    with pytest.raises(EmbeddedPostgresError, match="move it elsewhere"):
        await EmbeddedPostgres(data_dir).start()
    assert (data_dir / "postgres" / "precious").read_text() == "data"
