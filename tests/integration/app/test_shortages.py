"""What the service stands on runs short: disk, connections, the engine. Callers are told to come again, runs wait."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from structlog.testing import capture_logs

from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.processes import postgres
from learnloop_service.app.processes.data_directory import DataDirectory, DataDirectoryError
from learnloop_service.app.processes.engine import EngineProcess
from learnloop_service.app.processes.postgres import EmbeddedPostgres, EmbeddedPostgresError
from learnloop_service.training.backends.base import Backend, BackendUnavailable, Policy, TrainingInterrupted
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress
from tests.conditions import answered, until
from tests.connections import end_connections
from tests.fakes.sales_agent import GRAPH
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.engine_children import ENGINE_CHILD
from tests.integration.app.served import run_once, run_with, served, settings_for
from tests.integration.app.small_disk import filled, small_disk

CONNECTIONS = 20
CLIENTS = 30
POSTGRES_MB = 100


def _conninfo(data_dir: Path) -> str:
    return f"host='{data_dir / 'postgres'}' user=postgres dbname=postgres"


def _come_again(response: httpx.Response) -> bool:
    if response.status_code != 503:
        return False
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["retry-after"]) >= 1
    return True


def _incompressible(size: int, seed: int = 0) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


async def _rollbacks(data_dir: Path) -> int:
    query = "SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'"
    async with await psycopg.AsyncConnection.connect(_conninfo(data_dir)) as connection:
        row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_full_disk_of_the_database_makes_runs_wait() -> None:
    loop = ScriptedLoop(gates={1: threading.Event()}, reply=_incompressible(200_000))
    with small_disk(POSTGRES_MB) as disk:
        async with served(settings_for(disk, None), loop) as client:
            run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
            await until(loop.has_entered(1).is_set)
            with filled(disk):
                graph = [*GRAPH, *({"id": f"n{n}", "content": _incompressible(19_000, n)} for n in range(40))]
                assert _come_again(await client.post("/graphs", json={"graph": graph}))
                failed = await _rollbacks(disk)
                loop.gates[1].set()
                await answered(lambda: _rollbacks(disk), lambda now: now >= failed + 3, timeout_s=60)  # tries to save
                run = (await client.get(f"/runs/{run_id}")).json()
                assert (run["status"], run["progress"]["iterations_done"]) == ("running", 0)
            run = await run_with(client, run_id, "completed", "failed")
            assert (run["status"], len(run["iterations"])) == ("completed", 3)
            assert (await client.post("/graphs", json={"graph": graph})).status_code == 201


async def test_a_database_that_a_full_disk_has_ended_comes_back_with_the_disk() -> None:
    loop = ScriptedLoop(gates={1: threading.Event()})
    began = time.monotonic()
    with small_disk(POSTGRES_MB) as disk, capture_logs() as lines:
        async with served(settings_for(disk, None), loop) as client:
            run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
            await until(loop.has_entered(1).is_set)
            with filled(disk):
                with pytest.raises(psycopg.Error):
                    await _write_much_log(disk)
                loop.gates[1].set()
                await answered(lambda: client.get(f"/runs/{run_id}"), _come_again)
                await answered(lambda: client.get("/health/ready"), lambda reply: reply.status_code == 503)
                assert (await client.get("/health/live")).status_code == 200
            await answered(lambda: client.get("/health/ready"), lambda reply: reply.status_code == 200)
            run = await run_with(client, run_id, "completed", "failed")
            assert (run["status"], len(run["iterations"])) == ("completed", 3)
    complaints = Counter(
        (line["event"], line.get("work")) for line in lines if line["log_level"] in ("warning", "error")
    )
    assert ("embedded postgres died, starting it again", None) in complaints
    assert max(complaints.values()) <= 1 + (time.monotonic() - began) // 60, complaints


async def _write_much_log(data_dir: Path) -> None:
    """Where the server's log cannot grow, it ends."""
    async with await psycopg.AsyncConnection.connect(_conninfo(data_dir), autocommit=True) as connection:
        for _ in range(10):
            await connection.execute("SELECT pg_create_restore_point('here'), pg_switch_wal()")


async def test_a_database_that_takes_no_writes_makes_runs_wait(data_dir: Path, database_url: str) -> None:
    """The database is a standby, to which a failover has led us."""
    loop = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
        await until(loop.has_entered(1).is_set)
        await _take_writes(database_url, False)
        loop.gates[1].set()
        await answered(lambda: client.post("/learn-loop", json={}), _come_again)
        assert (await client.get(f"/runs/{run_id}")).json()["status"] == "running"
        await _take_writes(database_url, True)
        run = await run_with(client, run_id, "completed", "failed")
        assert (run["status"], len(run["iterations"])) == ("completed", 3)


async def _take_writes(database_url: str, does: bool) -> None:
    """Set whether the database takes writes. Only new connections see the setting, so the others are ended."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("SET default_transaction_read_only = off")
        name = connection.info.dbname
        await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {not does}".encode())
        await end_connections(connection, name)


async def test_without_free_connections_callers_are_told_to_come_again(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres._OPTIONS, "max_connections", str(CONNECTIONS))
    loop = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings_for(data_dir, None), loop) as client, AsyncExitStack() as hogs:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
        await until(loop.has_entered(1).is_set)
        await _take_every_connection(_conninfo(data_dir), hogs)
        path = f"/runs/{run_id}"
        replies = await asyncio.gather(*(client.get(path) for _ in range(CLIENTS)))
        assert all(map(_come_again, replies))
        posts = await asyncio.gather(*(client.post("/learn-loop", json={}) for _ in range(CLIENTS)))
        assert all(map(_come_again, posts))
        loop.gates[1].set()
        await hogs.aclose()
        run = await run_with(client, run_id, "completed", "failed")
        assert (run["status"], len(run["iterations"])) == ("completed", 3)
        assert len((await client.get("/runs")).json()["items"]) == 1  # a refused request made nothing


async def _take_every_connection(conninfo: str, hogs: AsyncExitStack) -> None:
    """Everybody else's connections are ended, and ours take their places."""
    first = await hogs.enter_async_context(await psycopg.AsyncConnection.connect(conninfo, autocommit=True))
    own_pids = [first.info.backend_pid]

    async def alone() -> bool:
        await first.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> ALL(%s)",
            [own_pids],
        )
        while True:
            try:
                hog = await hogs.enter_async_context(await psycopg.AsyncConnection.connect(conninfo, autocommit=True))
            except psycopg.OperationalError:
                break
            own_pids.append(hog.info.backend_pid)
        query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> ALL(%s)"
        row = await (await first.execute(query, [own_pids])).fetchone()
        return row == (0,) and len(own_pids) == CONNECTIONS

    await answered(alone, bool)


@pytest.fixture
def engine(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> EngineProcess:
    """One that dies at each start for as long as the file `orders` is there."""
    monkeypatch.setattr("learnloop_service.app.processes.engine._FIRST_PAUSE_S", 0.01)
    (data_dir / "orders").write_text("die at start")
    return EngineProcess(settings_for(data_dir, None), ENGINE_CHILD)


class _Behind(ScriptedBackend):
    """A backend on an engine: nobody is connected to it unless the engine is up."""

    def __init__(self, engine: EngineProcess) -> None:
        super().__init__()
        self._engine, self._home = engine, asyncio.get_running_loop()

    async def connect(self, name: str) -> Backend:
        await run_on_loop(self._home, self._engine.address())
        return self


async def test_a_run_waits_for_an_engine_that_is_gone(
    data_dir: Path, database_url: str, engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.driven._RETRY_DELAYS_S", (0.05,) * 1_000)
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), _Behind(engine)) as client:
        await engine.start()
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        run = await run_once(client, run_id, lambda run: run["wait_reason"])
        assert (run["status"], run["error"]) == ("running", None)
        assert "no torch here" in run["wait_reason"]
        assert _come_again(await client.post("/ask", json={"run_id": run_id, "question": "When?", "checkpoint": 0}))
        (data_dir / "orders").unlink()
        run = await run_with(client, run_id, "completed", "failed")
        assert (run["status"], run["wait_reason"]) == ("completed", None)
    await engine.stop()


async def test_a_run_whose_engine_stays_away_pauses_and_can_be_resumed(
    data_dir: Path, database_url: str, engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.driven._RETRY_DELAYS_S", (0.01,))
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), _Behind(engine)) as client:
        await engine.start()
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        run = await run_with(client, run_id, "paused", "failed")
        assert (run["status"], run["error"]) == ("paused", None)
        assert "no torch here" in run["wait_reason"]
        (data_dir / "orders").unlink()
        assert (await client.post(f"/runs/{run_id}/resume")).status_code == 202
        assert (await run_with(client, run_id, "completed", "failed"))["status"] == "completed"
    await engine.stop()


async def test_a_training_that_the_disk_refuses_is_tried_again(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine does then: tests/integration/training/test_full_disk.py."""
    monkeypatch.setattr("learnloop_service.app.worker.driven._RETRY_DELAYS_S", (0.05,) * 1_000)
    refuses = threading.Event()
    refuses.set()

    class Refusing(ScriptedBackend):
        async def register(self, model: Any) -> Policy:
            if refuses.is_set():
                raise BackendUnavailable("checkpoint 1 could not be written: No space left on device")
            return await super().register(model)

    async with served(settings_for(data_dir, database_url), ScriptedLoop(), Refusing()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        run = await run_once(client, run_id, lambda run: run["wait_reason"])
        assert (run["status"], "No space left" in run["wait_reason"]) == ("running", True)
        refuses.clear()
        run = await run_with(client, run_id, "completed", "failed")
        assert (run["status"], run["wait_reason"]) == ("completed", None)


class _FullDisk(ScriptedLoop):
    """Supervised training that takes steps and then cannot save them. `requests` counts its jobs."""

    requests = 0

    async def __call__(
        self, *_: Any, progress: Callable[[IterationProgress], None], **__: Any
    ) -> AsyncGenerator[Any, None]:
        self.requests += 1
        progress(IterationProgress(1, Phase.TRAIN, 1, 2))
        raise TrainingInterrupted("checkpoint 1 could not be written: No space left on device")
        yield


async def test_a_disk_that_stays_full_pauses_the_run_and_says_so(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before the failure are lost, so they are no progress and do not start the delays anew."""
    monkeypatch.setattr("learnloop_service.app.worker.driven._RETRY_DELAYS_S", (0.01,) * 4)
    loop = _FullDisk()
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        run = await run_with(client, run_id, "paused", "failed")
        assert (run["status"], run["error"]) == ("paused", None)
        assert "No space left on device; resume the run when that is fixed" in run["wait_reason"]
        assert loop.requests == 5  # one and, after each of the four delays, another one


async def test_a_data_directory_that_cannot_be_written_is_told() -> None:
    with small_disk(1) as disk, filled(disk), pytest.raises(DataDirectoryError, match="No space left on device"):
        DataDirectory(disk)
    with small_disk(1, "ro") as disk, pytest.raises(DataDirectoryError, match="Read-only file system"):
        DataDirectory(disk / "data")


async def test_a_disk_too_small_for_a_first_start_is_told_and_left_as_it_was() -> None:
    with small_disk(10) as disk:
        with pytest.raises(EmbeddedPostgresError, match="No space left on device"):
            await EmbeddedPostgres(disk).start()
        assert not list(disk.iterdir())
    with small_disk(1, "ro") as disk, pytest.raises(EmbeddedPostgresError, match="Read-only file system"):
        await EmbeddedPostgres(disk).start()
