"""Users' answers over HTTP, from the real engine, and a run that learns from them."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession
from learnloop_service.training.backends.base import Backend
from learnloop_service.training.backends.embedded import connect
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.engine_process import EngineProcess
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.keyed import bearer
from tests.integration.app.learned_answers import few_suffice as few_suffice
from tests.integration.app.model_stage import CALLER, ENGINE_KEY, engine_http
from tests.integration.app.served import run_with, served, settings_for, start
from tests.integration.engine.training_client import taught_caller

USERS = 24
SOURCE = {"train_on": "answers", "model": "mail/live", "outcome": {"session_reward": [0, 1]}, "window_hours": 1}


class _RealBackend(ScriptedBackend):
    """Whose models are those of the engine."""

    def __init__(self, engine: EngineProcess) -> None:
        super().__init__()
        self._engine = engine

    async def connect(self, name: str) -> Backend:
        return await connect(self._engine.base_url, ENGINE_KEY)


async def _answered(client: httpx.AsyncClient, number: int) -> None:
    """A user's session at the engine's own sampling, every other one of which goes well."""
    opening = {"model": "mail/live", "user": f"user {number}", "train": True, "project": "mail"}
    session = (await client.post("/sessions", json=opening)).raise_for_status().json()
    asked = {"model": "any", "messages": [{"role": "user", "content": f"Question {number}?"}], "max_tokens": 6}
    reply = await client.post("/v1/chat/completions", json=asked, headers=bearer(session["api_key"]))
    reply.raise_for_status()
    outcome = {"reward": number % 2}
    (await client.post(f"/sessions/{session['id']}/outcome", json=outcome)).raise_for_status()


async def _learned(client: httpx.AsyncClient, database: Database) -> Any:
    """The run that learns from what all users were answered yesterday."""
    promoted = await client.post(f"/models/{CALLER}/promote", json={"step": 1, "as": "live"})
    assert promoted.status_code == 201, promoted.text
    await asyncio.gather(*(_answered(client, number) for number in range(USERS)))
    async with database.begin() as tx:
        day = timedelta(days=1)
        earlier = {"opened_at": AgentSession.opened_at - day, "ended_at": AgentSession.ended_at - day}
        await tx.execute(update(AgentSession).values(earlier))
    body = {"source": {"sessions": SOURCE}, "model": {"project": "mail"}, "iterations": 2}
    run = await run_with(client, await start(client, body), "completed", "failed")
    assert run["status"] == "completed", run["error"]
    return run


async def _is_released_by_its_outcome(client: httpx.AsyncClient) -> None:
    """A due time that learns from the same answers starts a release that their outcome decides, without a trial."""
    run = {"source": {"sessions": SOURCE}, "iterations": 2}
    body = {
        "name": "weekly",
        "cron": "0 2 * * 1",
        "project": "mail",
        "then": "release",
        "run": run,
        "least_new_tasks": 3,
    }
    schedule = (await client.post("/schedules", json=body)).raise_for_status().json()
    (await client.post(f"/schedules/{schedule['id']}/run")).raise_for_status()

    async def newest() -> Any:
        return (await client.get(f"/schedules/{schedule['id']}/runs")).raise_for_status().json()["items"][0]

    due_time = await answered(newest, lambda row: row["state"] != "running")
    assert due_time["release_id"] is not None, due_time
    rules = (await client.get(f"/releases/{due_time['release_id']}")).raise_for_status().json()["rules"]
    decides = {name: rules[name] for name in ("outcome", "window_hours", "skip_trial")}
    assert decides == {"outcome": SOURCE["outcome"], "window_hours": 1, "skip_trial": True}
    assert rules["goal"] in ("better", "guardrails")  # the latter if so few users can show nothing


@pytest.mark.usefixtures("few_suffice")
async def test_answers_that_users_got_are_learned_from(
    model_engine: EngineProcess, data_dir: Path, database_url: str, database: Database
) -> None:
    async with engine_http(model_engine) as http:
        await taught_caller(http, "caller", "mail")
    settings = settings_for(
        data_dir,
        database_url,
        engine_url=model_engine.base_url.removesuffix("/v1"),
        engine_key=ENGINE_KEY,
        engine_base_models={"tiny": model_engine.data_dir.parent / "base"},
        rate_per_s=0,
    )
    async with served(settings, cast(Any, learn_loop), _RealBackend(model_engine)) as client:
        run = await _learned(client, database)
        assert run["warnings"][0].startswith(f"Learns from {USERS} answers to {USERS} users whose windows are closed; ")
        items = (await client.get(f"/runs/{run['run_id']}/iterations")).json()["items"]
        metrics = [item["train_metrics"] for item in items[1:]]
        assert all(figures["served_answers"] > 0 for figures in metrics)
        assert all(figures["served_withdrawn"] == figures["served_damaged"] == 0 for figures in metrics)
        assert run["request"]["served"]["start"] == f"{CALLER}@1"
        verified = (await client.get(f"/runs/{run['run_id']}/verify")).raise_for_status().json()
        assert verified["ok"], verified["differences"]
        await _is_released_by_its_outcome(client)
