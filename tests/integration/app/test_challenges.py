"""A checkpoint takes a promoted name if a trial shows that it is better than the one that has it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_chat import Reply, ScriptedChat, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.released_models import PROMOTE, scripted_engine
from tests.integration.app.served import run_with, served, settings_for


@asynccontextmanager
async def _service(data_dir: Path, database_url: str, chat: ScriptedChat) -> AsyncIterator[httpx.AsyncClient]:
    """With a model `m` of three iterations."""
    settings = settings_for(data_dir, database_url)
    async with served(settings, ScriptedLoop(), ScriptedBackend(chat.url)) as client:
        posted = await client.post("/learn-loop", json={"iterations": 3, "model": {"name": "m"}})
        await run_with(client, posted.json()["run_id"], "completed")
        yield client


async def _trial(client: httpx.AsyncClient, **request: Json) -> Json:
    accepted = await client.post(PROMOTE, json={"if_better_than": "live", **request})
    assert accepted.status_code == 202, accepted.text
    evaluation = await ended(client, accepted.json()["evaluation_id"])
    assert evaluation["status"] == "completed", evaluation["error"]
    return evaluation


async def _promotions(client: httpx.AsyncClient) -> list[Json]:
    items: list[Json] = (await client.get("/promotions/learnloop/live")).raise_for_status().json()["items"]
    return items


async def test_a_name_goes_to_the_better_one_with_the_evidence(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, _service(data_dir, database_url, chat) as client:
        early = await client.post(PROMOTE, json={"step": 2, "if_better_than": "live"})
        assert (early.status_code, "Nothing is promoted" in early.json()["detail"]) == (409, True)
        assert (await client.post(PROMOTE, json={"step": 0, "as": "live"})).json()["evidence"] is None

        won = await _trial(client, step=2)
        trial = won["report"]["trial"]
        assert (trial["decision"], trial["pairs"]) == ("promote", 10)  # decided at the first look
        assert won["done"] == 20 < won["total"]
        [now, before] = await _promotions(client)
        assert (now["model"], now["step"], before["step"]) == ("learnloop/m", 2, 0)
        evidence = now["evidence"]
        assert (evidence["evaluation_id"], evidence["pairs"]) == (won["evaluation_id"], 10)
        assert evidence["difference"] == {"mean": 1.0, "low": 1.0, "high": 1.0}

        lost = await _trial(client, step=1)
        assert lost["report"]["trial"]["decision"] == "refuse"
        unclear = await _trial(client, step=3, scenarios=10)
        assert (unclear["report"]["trial"]["decision"], unclear["done"]) == ("undecided", 20)
        assert len(await _promotions(client)) == 2
        again = await client.post(PROMOTE, json={"step": 2, "if_better_than": "live"})
        assert (again.status_code, "already" in again.json()["detail"]) == (409, True)


async def test_a_name_that_was_given_away_meanwhile_stays(data_dir: Path, database_url: str) -> None:
    may_answer, begun = asyncio.Event(), asyncio.Event()

    async def slow(request: Json) -> Reply:
        if request:
            begun.set()
            await may_answer.wait()
        return await scripted_engine(request)

    async with scripted_chat(slow) as chat, _service(data_dir, database_url, chat) as client:
        await client.post(PROMOTE, json={"step": 0, "as": "live"})
        accepted = await client.post(PROMOTE, json={"step": 2, "if_better_than": "live"})
        await begun.wait()
        await client.post(PROMOTE, json={"step": 1, "as": "live"})
        may_answer.set()
        evaluation = await ended(client, accepted.json()["evaluation_id"])
        assert evaluation["report"]["trial"]["decision"] == "overtaken"
        assert [promotion["step"] for promotion in await _promotions(client)] == [1, 0]

        # One that was taken away meanwhile stays away.
        may_answer.clear()
        begun.clear()
        accepted = await client.post(PROMOTE, json={"step": 2, "if_better_than": "live"})
        await begun.wait()
        assert (await client.delete("/promotions/learnloop/live")).status_code == 200
        may_answer.set()
        evaluation = await ended(client, accepted.json()["evaluation_id"])
        assert evaluation["report"]["trial"]["decision"] == "overtaken"
        assert (await client.get("/promotions/learnloop/live")).status_code == 404


@pytest.mark.parametrize("silent", [0, 2])
async def test_a_checkpoint_that_never_answers_decides_nothing(data_dir: Path, database_url: str, silent: int) -> None:
    async def without(request: Json) -> Reply:
        if request.get("model") == f"learnloop/m@{silent}":
            return Reply(status=400, body={"error": {"message": "the checkpoint is lost"}})
        return await scripted_engine(request)

    async with scripted_chat(without) as chat, _service(data_dir, database_url, chat) as client:
        await client.post(PROMOTE, json={"step": 0, "as": "live"})
        accepted = await client.post(PROMOTE, json={"step": 2, "if_better_than": "live"})
        evaluation = await ended(client, accepted.json()["evaluation_id"])
        assert (evaluation["status"], evaluation["report"]["trial"]) == ("failed", None)
        label = "champion" if silent == 0 else "challenger"
        assert evaluation["error"].startswith(f"{label} has no figures: none of its 10 rollouts got an answer: ")
        assert "the checkpoint is lost" in evaluation["error"]
        assert [promotion["step"] for promotion in await _promotions(client)] == [0]


async def test_what_makes_no_trial_is_refused(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, _service(data_dir, database_url, chat) as client:
        for request, message in (
            ({"step": 2}, "give as, or if_better_than"),
            ({"step": 2, "as": "live", "margin": 0.2}, "margin can only be given with if_better_than"),
            ({"step": 2, "if_better_than": "live", "alpha": 0.9}, "less than 0.5"),
        ):
            refused = await client.post(PROMOTE, json=request)
            assert (refused.status_code, message in refused.json()["errors"][0]["msg"]) == (422, True)
        await client.post(PROMOTE, json={"step": 0, "as": "live"})
        missing = await client.post(PROMOTE, json={"step": 9, "if_better_than": "live"})
        assert missing.status_code == 404
        assert (await client.get("/evaluations")).json()["items"] == []


@pytest.mark.long
async def test_the_command_promotes_the_better_one(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, _service(data_dir, database_url, chat) as client:
        await client.post(PROMOTE, json={"step": 0, "as": "live"})

        async def command(step: str) -> Any:
            arguments = ["models", "promote", "learnloop/m", "--step", step, "--as", "live", "--if-better"]
            return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--url", str(client.base_url)])

        worse = await command("1")
        assert (worse.exit_code, "not promoted" in worse.stdout) == (1, True)
        better = await command("2")
        assert (better.exit_code, "promoted: it is better than what live was (10 scenarios" in better.stdout) == (
            0,
            True,
        )
