"""What becomes of runs when the service or its database stops under them."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import text

from app.db import make_engine, parse_url
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for, until


async def test_a_run_stopped_in_its_baseline_starts_again(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)
    held = ScriptedLoop(gates={0: threading.Event()})
    async with served(settings, held) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        await until(held.has_entered(0).is_set)
    assert held.closed.is_set()
    async with served(settings, ScriptedLoop()) as client:
        await run_with(client, run_id, "completed")


async def test_a_run_stopped_later_says_what_to_do(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)
    held = ScriptedLoop(gates={3: threading.Event()})
    async with served(settings, held) as client:
        run_id = (await client.post("/learn-loop", json={})).json()["run_id"]
        await until(held.has_entered(3).is_set)
    async with served(settings, ScriptedLoop()) as client:
        run: Any = (await client.get(f"/runs/{run_id}")).json()
        assert run["status"] == "failed"
        assert run["error"].startswith("interrupted: the service stopped after iteration 2; post the learn-loop again")
        assert run["progress"]["iterations_done"] == 2


async def test_a_killed_service_leaves_runs_that_the_next_one_settles(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url)
    held = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings, held) as client:
        ids = [(await client.post("/learn-loop", json={})).json()["run_id"] for _ in range(4)]
        await until(held.has_entered(1).is_set)
    begun, asked_to_stop, new, foreign = ids
    rows = {
        begun: ("running", str(data_dir), False, 4),
        asked_to_stop: ("running", str(data_dir), True, 4),
        new: ("running", str(data_dir), False, 0),
        foreign: ("running", "another data directory", False, 4),
    }
    engine = make_engine(parse_url(database_url))
    async with engine.begin() as connection:
        for run_id, (status, owner, cancel, done) in rows.items():
            await connection.execute(
                text(
                    "UPDATE run SET status = :s, owner = :o, cancel_requested = :c, next_iteration = :n WHERE id = :id"
                ),
                {"s": status, "o": owner, "c": cancel, "n": done, "id": run_id},
            )
    await engine.dispose()
    async with served(settings, ScriptedLoop(gates={0: threading.Event()})) as client:
        assert "after iteration 3" in (await run_with(client, begun, "failed"))["error"]
        await run_with(client, asked_to_stop, "cancelled")
        assert (await run_with(client, new, "running"))["error"] is None
        await run_with(client, foreign, "running")


async def test_a_database_crash_is_not_the_runs_failure(data_dir: Path) -> None:
    loop = ScriptedLoop(gates={1: threading.Event(), 2: threading.Event()})
    async with served(settings_for(data_dir, None), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
        for iteration in (1, 2):
            await until(loop.has_entered(iteration).is_set)
            postmaster = int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])
            os.kill(postmaster, signal.SIGKILL)
            loop.gates[iteration].set()
        async with asyncio.timeout(30):
            while (response := await client.get(f"/runs/{run_id}")).status_code == 503 or (
                response.json()["status"] == "running"
            ):
                assert response.status_code in (200, 503)
        assert response.json()["status"] == "completed"
        assert [point["iteration"] for point in response.json()["iterations"]] == [0, 1, 2]
