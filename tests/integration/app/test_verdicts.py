"""The verdict on a run as its readers see it: API, list, events and webhooks."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fakes.webhook_receiver import receiver
from tests.integration.app.served import run_with, served, settings_for

BEFORE = [True] * 8 + [False] * 16
WORSE = [False] * 24
BETTER = [True] * 24


async def _finished(client: httpx.AsyncClient, status: str = "completed", **request: Any) -> dict[str, Any]:
    body = {"iterations": 2, "model": {"name": "a"}} | request
    run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
    run: dict[str, Any] = await run_with(client, run_id, status)
    return run


async def test_a_run_that_got_worse_says_so_everywhere(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(held_out={0: BEFORE, 1: BETTER, 2: WORSE})
    settings = settings_for(data_dir, database_url, allowed_private_hosts="127.0.0.0/8")
    async with receiver() as hook, served(settings, loop) as client:
        run = await _finished(client, webhooks=[{"url": hook.url, "events": ["run.completed"]}])
        verdict = run["verdict"]
        assert (verdict["state"], verdict["causes"]) == ("got_worse", [])
        assert verdict["points"] == -33.3
        assert verdict["interval"][0] < -33.3 < verdict["interval"][1] < 0
        on = verdict["on"]
        assert (on["split"], on["mode"], on["scenarios"]) == ("validation", "sampled", 24)
        assert on["first"] == {"iteration": 0, "step": 0, "success": 8 / 24}
        assert on["latest"] == {"iteration": 2, "step": 2, "success": 0.0}
        fell = "Got worse: held-out success fell from 33% to 0%, \u221233 points (95% interval \u2212"
        assert verdict["text"].startswith(fell)
        assert verdict["text"].endswith(" The best checkpoint is the model before training, with 33%.")
        rose = next(row for row in run["evaluations"] if row["iteration"] == 1)["difference"]
        assert (rose["scenarios"], rose["changed"], rose["mean"]) == (24, 16, pytest.approx(16 / 24))
        [listed] = (await client.get("/runs")).json()["items"]
        assert listed["verdict"] == verdict
        events = (await client.get(f"/runs/{run['run_id']}/events", params={"limit": 200})).json()["items"]
        assert events[-1]["type"] == "run.completed"
        assert events[-1]["data"]["verdict"] == verdict
        await until(lambda: hook.received)
        assert [body["verdict"] for body in hook.bodies()] == [verdict]


async def test_a_run_that_stops_early_keeps_its_verdict(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(held_out={0: BEFORE, 1: BETTER}, fail_at=2)
    async with served(settings_for(data_dir, database_url), loop) as client:
        run = await _finished(client, "failed")
        assert run["verdict"]["state"] == "learned"
        events = (await client.get(f"/runs/{run['run_id']}/events", params={"limit": 200})).json()["items"]
        assert events[-1]["data"] == {"error": run["error"], "verdict": run["verdict"]}


async def test_a_paused_run_can_have_learned(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(held_out={0: BEFORE, 1: BETTER}, gates={2: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).raise_for_status().json()["run_id"]
        await until(loop.has_entered(2).is_set)
        (await client.post(f"/runs/{run_id}/pause")).raise_for_status()
        run = await run_with(client, run_id, "paused")
        assert run["verdict"]["state"] == "learned"
        events = (await client.get(f"/runs/{run_id}/events", params={"limit": 200})).json()["items"]
        assert (events[-1]["type"], events[-1]["data"]["verdict"]) == ("run.paused", run["verdict"])
        (await client.post(f"/runs/{run_id}/cancel")).raise_for_status()
        events = (await client.get(f"/runs/{run_id}/events", params={"limit": 200})).json()["items"]
        assert (events[-1]["type"], events[-1]["data"]["verdict"]) == ("run.cancelled", run["verdict"])


async def test_a_run_with_one_evaluation_is_too_early_to_judge(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop(held_out={0: BEFORE}, fail_at=1)) as client:
        verdict = (await _finished(client, "failed"))["verdict"]
        assert (verdict["state"], verdict["points"], verdict["interval"]) == ("too_early", None, None)
        assert verdict["on"]["latest"] is None


async def test_the_difference_is_stored_with_the_evaluation(
    data_dir: Path, database_url: str, database: Database
) -> None:
    """The verdict outlives the rollouts, which can be deleted because of their age."""
    async with served(settings_for(data_dir, database_url), ScriptedLoop(held_out={0: BEFORE, 2: BETTER})) as client:
        await _finished(client)
    async with database() as tx:
        rows = (await tx.execute(select(Evaluation).order_by(Evaluation.iteration))).scalars().all()
    assert rows[0].difference is None
    assert rows[-1].difference is not None
    assert rows[-1].difference["changed"] == 16
