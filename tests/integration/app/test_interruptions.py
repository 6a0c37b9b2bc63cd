"""What becomes of runs when the service or its database stops under them."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import text

from learnloop_service.app.db.database import make_engine, parse_url
from learnloop_service.app.worker.journal_store import StoredJournal
from learnloop_service.training.journal import ALL_JUDGED
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress, IterationResult
from tests.conditions import until
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_judge import Raw, scripted_judge
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.own_agent_runs import AGENTS, by_seed, request
from tests.integration.app.served import run_with, served, settings_for


@pytest.mark.parametrize("stopped_in", [0, 1, 3])
async def test_a_run_whose_service_stops_goes_on_in_the_next(
    data_dir: Path, database_url: str, stopped_in: int
) -> None:
    settings, backend = settings_for(data_dir, database_url), ScriptedBackend()
    waiting_loop = ScriptedLoop(gates={stopped_in: threading.Event()})
    async with served(settings, waiting_loop, backend) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 3})).json()["run_id"]
        await until(waiting_loop.has_entered(stopped_in).is_set)
    assert waiting_loop.closed.is_set()
    going_on = ScriptedLoop()
    async with served(settings, going_on, backend) as client:
        run = await run_with(client, run_id, "completed")
        assert [point["iteration"] for point in run["iterations"]] == [0, 1, 2, 3]
        events = (await client.get(f"/runs/{run_id}/events")).json()["items"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    types = [event["type"] for event in events]
    assert types[:2] == ["run.created", "run.started"]
    assert types[-1] == "run.completed"
    assert (types.count("run.released"), types.count("run.started")) == (1, 2)
    assert types.count("iteration.completed") == 4
    assert min(going_on.entered) == stopped_in


async def test_the_runs_of_a_killed_service_are_free_when_the_next_one_holds_its_directory(
    data_dir: Path, database_url: str
) -> None:
    settings, backend = settings_for(data_dir, database_url, lease_s=3600), ScriptedBackend()
    waiting_loop = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings, waiting_loop, backend) as client:
        ids = [(await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"] for _ in range(3)]
        await until(waiting_loop.has_entered(1).is_set)
    resumable, asked_to_stop, foreign = ids
    killed = (data_dir / "worker").read_text()
    engine = make_engine(parse_url(database_url))
    async with engine.begin() as connection:  # as SIGKILL would have left it
        for run_id, owner, cancel in (
            (resumable, killed, False),
            (asked_to_stop, killed, True),
            (foreign, "other", False),
        ):
            await connection.execute(
                text(
                    "UPDATE run SET status = 'running', owner = :owner, cancel_requested = :cancel, epoch = epoch + 1, "
                    "lease_until = now() + interval '1 hour' WHERE id = :id"
                ),
                {"owner": owner, "cancel": cancel, "id": run_id},
            )
    await engine.dispose()
    async with served(settings, ScriptedLoop(), backend) as client:
        await run_with(client, resumable, "completed")
        await run_with(client, asked_to_stop, "cancelled")
        assert (await run_with(client, foreign, "running"))["progress"]["iterations_done"] == 0


async def test_a_paused_run_holds_its_model_and_goes_on_when_resumed(data_dir: Path, database_url: str) -> None:
    waiting_loop = ScriptedLoop(gates={2: threading.Event()})
    async with served(settings_for(data_dir, database_url), waiting_loop) as client:
        body = {"iterations": 3, "model": {"name": "held"}}
        run_id = (await client.post("/learn-loop", json=body)).json()["run_id"]
        await until(waiting_loop.has_entered(2).is_set)
        assert (await client.post(f"/runs/{run_id}/pause")).json()["status"] == "running"
        await run_with(client, run_id, "paused")
        assert waiting_loop.closed.is_set()
        assert (await client.post("/learn-loop", json=body)).json()["run_id"] == run_id
        refused = await client.post(f"/runs/{run_id}/retry")
        assert (refused.status_code, refused.json()["allowed"]) == (409, ["cancel", "resume", "fork"])
        waiting_loop.gates[2].set()
        assert (await client.post(f"/runs/{run_id}/resume")).json()["status"] == "queued"
        run = await run_with(client, run_id, "completed")
        assert [point["iteration"] for point in run["iterations"]] == [0, 1, 2, 3]
        types = [event["type"] for event in (await client.get(f"/runs/{run_id}/events")).json()["items"]]
    assert [type for type in types if "pause" in type or "resume" in type] == [
        "run.pause_requested",
        "run.paused",
        "run.resumed",
    ]


async def test_a_planned_end_loses_no_finished_rollout(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What still waits to be written with others is written when the run is paused, and when its service stops."""
    monkeypatch.setattr("learnloop_service.app.worker.journal_store._BATCH_S", 3600)
    journals: list[set[str]] = []

    async def learn(*_: Any, journal: StoredJournal, **__: Any) -> AsyncGenerator[IterationResult, None]:
        names = set(await journal.kept(0))
        journal.keep_soon(0, f"rollout/train/{len(names)}", "{}")
        journals.append(names)
        await asyncio.Event().wait()
        raise AssertionError("it is stopped before")
        yield

    settings, backend = settings_for(data_dir, database_url), ScriptedBackend()
    async with served(settings, cast(Any, learn), backend) as client:
        run_id = (await client.post("/learn-loop", json={})).json()["run_id"]
        await until(lambda: len(journals) == 1)
        await client.post(f"/runs/{run_id}/pause")
        await run_with(client, run_id, "paused")
        await client.post(f"/runs/{run_id}/resume")
        await until(lambda: len(journals) == 2)
    async with served(settings, cast(Any, learn), backend):
        await until(lambda: len(journals) == 3)
    assert journals[1:] == [{"rollout/train/0"}, {"rollout/train/0", "rollout/train/1"}]


async def test_what_waits_to_be_written_is_written_before_its_iteration(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.journal_store._BATCH_S", 3600)
    scripted = ScriptedLoop()

    async def learn(*arguments: Any, journal: StoredJournal, **named: Any) -> AsyncGenerator[IterationResult, None]:
        async for result in scripted(*arguments, journal=journal, **named):
            journal.keep_soon(result.iteration, ALL_JUDGED, "[]")
            yield result

    async with served(settings_for(data_dir, database_url), cast(Any, learn)) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        await run_with(client, run_id, "completed")
        types = [event["type"] for event in (await client.get(f"/runs/{run_id}/events")).json()["items"]]
    assert [type for type in types if type in ("phase.completed", "iteration.completed")] == [
        "phase.completed",
        "phase.completed",
        "iteration.completed",
    ] * 2


async def test_a_queued_run_is_paused_and_cancelled_at_once(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, max_concurrent_runs=0)
    async with served(settings, ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={})).json()["run_id"]
        assert (await client.post(f"/runs/{run_id}/pause")).json()["status"] == "paused"
        assert (await client.post(f"/runs/{run_id}/cancel")).json()["status"] == "cancelled"
        assert (await client.post(f"/runs/{run_id}/cancel")).json()["status"] == "cancelled"
        run = (await client.get(f"/runs/{run_id}")).json()
        assert run["started_at"] is None
        assert run["finished_at"] is not None
        assert (await client.post(f"/runs/{run_id}/resume")).status_code == 409


async def test_a_failed_run_goes_on_when_it_is_retried(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(fail_at=2)
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 3})).json()["run_id"]
        failed = await run_with(client, run_id, "failed")
        assert "scripted failure" in failed["error"]
        loop.fail_at = None
        assert (await client.post(f"/runs/{run_id}/retry")).json()["status"] == "queued"
        run = await run_with(client, run_id, "completed")
        assert (run["error"], [point["iteration"] for point in run["iterations"]]) == (None, [0, 1, 2, 3])


async def test_a_retried_run_asks_its_judge_again_for_scores_that_it_did_not_give(
    data_dir: Path, database_url: str
) -> None:
    async with scripted_judge([Raw(status=400, body="{}")] * 1_000) as judge, scripted_chat(by_seed) as chat:
        options = {"judge_model": "openai/scripted", "judge_base_url": judge.url, "judge_api_key": "k"}
        settings = settings_for(data_dir, database_url, agent_modules="tests.fakes", **options)
        async with served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
            body = request({"python": f"{AGENTS}:answering"}, judge={"name": "ruler"})
            run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
            failed = await run_with(client, run_id, "failed")
            assert "the judge scored no rollout" in failed["error"]
            judge.replies.clear()  # the judge is repaired
            judge.reset()
            assert (await client.post(f"/runs/{run_id}/retry")).json()["status"] == "queued"
            run = await run_with(client, run_id, "completed", "failed")
            assert (run["status"], run["error"]) == ("completed", None)
            assert judge.requests
            rows = (await client.get(f"/runs/{run_id}/trajectories?limit=200&iteration=0")).json()["items"]
            assert [row["score"] for row in rows] == [0.5] * len(rows)


async def test_a_run_that_hangs_is_told_and_ended(data_dir: Path, database_url: str) -> None:
    """The loop blocks its own thread: nothing can cancel it, but the run ends and the next one is driven."""
    settings = settings_for(data_dir, database_url, phase_timeout_s=3, lease_s=1.5)
    release = threading.Event()
    loop = HangingLoop(release)
    async with served(settings, loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        run = await run_with(client, run_id, "failed")
        assert run["error"] == "the phase rollout made no progress for 3 s"
        loop.hang = False
        other = (await client.post("/learn-loop", json={"iterations": 1})).json()["run_id"]
        await run_with(client, other, "completed")
        release.set()


class HangingLoop(ScriptedLoop):
    """Blocks its thread in the baseline until it is released."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__()
        self.release = release
        self.hang = True

    async def __call__(self, *args: Any, **more: Any) -> AsyncGenerator[IterationResult, None]:
        if self.hang:
            more["progress"](IterationProgress(0, Phase.ROLLOUT, 0, 1))
            self.release.wait(60)
        async for result in super().__call__(*args, **more):
            yield result


async def test_a_database_crash_is_not_the_runs_failure(data_dir: Path) -> None:
    loop = ScriptedLoop(gates={1: threading.Event(), 2: threading.Event()})
    async with served(settings_for(data_dir, None), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).json()["run_id"]
        for iteration in (1, 2):
            await until(loop.has_entered(iteration).is_set)
            postmaster = int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])
            os.kill(postmaster, signal.SIGKILL)
            loop.gates[iteration].set()
        async with asyncio.timeout(60):
            while (response := await client.get(f"/runs/{run_id}")).status_code == 503 or (
                response.json()["status"] == "running"
            ):
                assert response.status_code in (200, 503)
        assert response.json()["status"] == "completed"
        assert [point["iteration"] for point in response.json()["iterations"]] == [0, 1, 2]
