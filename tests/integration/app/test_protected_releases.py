"""What a live release keeps from others: promotions, trials and withdrawals of its name, and its checkpoints."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.release_state import ReleaseReason
from learnloop_service.app.releases import moves
from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import ModelStage, engine_http
from tests.integration.app.release_stage import running_release
from tests.integration.app.released_models import (
    PROMOTE,
    RELEASES,
    release_events,
    release_service,
    scripted_engine,
    started_release,
)
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.trained_models import trained_model
from tests.integration.app.waiting_transactions import is_waiting
from tests.integration.cli.conftest import Learnloop
from tests.integration.cli.conftest import learnloop as learnloop

LIVE = "/promotions/learnloop/live"
Send = Callable[[httpx.AsyncClient, bool], Awaitable[httpx.Response]]


async def _promote(client: httpx.AsyncClient, end_release: bool) -> httpx.Response:
    more = {"end_release": True} if end_release else {}
    return await client.post(PROMOTE, json={"step": 3, "as": "live", **more})


async def _withdraw(client: httpx.AsyncClient, end_release: bool) -> httpx.Response:
    return await client.delete(LIVE, params={"end_release": True} if end_release else {})


async def _try(client: httpx.AsyncClient, end_release: bool) -> httpx.Response:
    """A trial of a checkpoint that answers nothing, as the champion does."""
    more = {"end_release": True} if end_release else {}
    return await client.post(PROMOTE, json={"step": 1, "if_better_than": "live", "scenarios": 10, **more})


async def _read(client: httpx.AsyncClient, path: str) -> Json:
    return (await client.get(path)).raise_for_status().json()


async def _steps(client: httpx.AsyncClient) -> list[int]:
    return [promotion["step"] for promotion in (await _read(client, LIVE))["items"]]


@pytest.mark.parametrize(("send", "status"), [(_promote, 201), (_withdraw, 200), (_try, 202)])
async def test_a_name_with_a_live_release_is_only_touched_by_ending_it(
    data_dir: Path, database_url: str, send: Send, status: int
) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        id = (await started_release(client))["release_id"]
        before = await _read(client, f"/releases/{id}")

        refused = await send(client, False)
        assert (refused.status_code, refused.json()["release_id"]) == (409, id)
        assert refused.json()["detail"] == (
            f"Release {id} of learnloop/live is live. Roll it back first, or end it with `end_release: true` (in the "
            "terminal: --end-release)."
        )
        after = await _read(client, f"/releases/{id}")
        assert (after["state"], after["version"]) == (before["state"], before["version"]) == ("running", 2)
        assert await _steps(client) == [0]
        assert (await _read(client, "/evaluations"))["items"] == []
        assert len(await release_events(client, id)) == 1

        reply = await send(client, True)
        assert reply.status_code == status, reply.text
        assert (await _read(client, f"/releases/{id}"))["state"] == "overtaken"
        [_, event] = await release_events(client, id)
        data = event["data"]
        assert (event["type"], data["state"], data["release_version"]) == ("release.ended", "overtaken", 3)
        assert event["actor"] == "local"
        if send is _promote:
            assert await _steps(client) == [3, 0]
        elif send is _withdraw:
            assert (await client.get(LIVE)).status_code == 404
        else:
            trial = await ended(client, reply.json()["evaluation_id"])
            assert trial["report"]["trial"]["decision"] == "undecided"
            assert await _steps(client) == [0]


async def test_what_is_refused_for_another_reason_ends_no_release(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        id = (await started_release(client))["release_id"]
        for request, status in (
            ({"step": 9, "as": "live"}, 404),
            ({"step": 9, "if_better_than": "live"}, 404),
            ({"step": 0, "if_better_than": "live"}, 409),  # the name means it already
        ):
            refused = await client.post(PROMOTE, json={**request, "end_release": True})
            assert (refused.status_code, "release_id" in refused.json()) == (status, False), refused.text
        other = await client.post(PROMOTE, json={"step": 3, "as": "other", "end_release": True})
        assert other.status_code == 201
        assert (await _read(client, f"/releases/{id}"))["state"] == "running"


async def test_a_trial_that_is_won_during_a_release_is_overtaken(data_dir: Path, database_url: str) -> None:
    begun, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: Json) -> Reply:
        if request:
            begun.set()
            await may_answer.wait()
        return await scripted_engine(request)

    async with scripted_chat(slow) as chat, release_service(data_dir, database_url, chat) as client:
        trial = (await client.post(PROMOTE, json={"step": 3, "if_better_than": "live"})).json()
        await begun.wait()
        id = (await started_release(client))["release_id"]
        may_answer.set()
        evaluation = await ended(client, trial["evaluation_id"])
        assert evaluation["report"]["trial"]["decision"] == "overtaken"
        assert await _steps(client) == [0]
        assert (await _read(client, f"/releases/{id}"))["state"] == "running"


async def test_the_trial_of_a_release_that_is_ended_is_cancelled(data_dir: Path, database_url: str) -> None:
    begun, may_answer = asyncio.Event(), asyncio.Event()

    async def stuck(request: Json) -> Reply:
        if request:
            begun.set()
            await may_answer.wait()
        return await scripted_engine(request)

    async with scripted_chat(stuck) as chat, release_service(data_dir, database_url, chat) as client:
        started = (await client.post(RELEASES, json={"step": 2})).json()
        await begun.wait()
        assert (await _promote(client, False)).status_code == 409
        assert (await _promote(client, True)).status_code == 201

        async def trial() -> Json:
            return await _read(client, f"/evaluations/{started['evaluation_id']}")

        await answered(trial, lambda evaluation: evaluation["status"] == "cancelled")
        assert (await _read(client, f"/releases/{started['release_id']}"))["state"] == "overtaken"


async def test_a_promotion_waits_for_a_decision_that_is_being_written(
    data_dir: Path, database_url: str, database: Database
) -> None:
    """Both lock the release before the name; in the other order they would deadlock here."""
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        id = (await started_release(client))["release_id"]
        async with database.begin() as tx:
            row = await moves.locked(tx, id)
            assert row is not None
            waiting = asyncio.create_task(_promote(client, False))
            await answered(lambda: is_waiting(database), bool)
            await moves.promote(tx, row, ReleaseReason.TIME, moves.SYSTEM, None)
        assert (await waiting).status_code == 201
        assert await _steps(client) == [3, 2, 0]
        assert (await _read(client, f"/releases/{id}"))["state"] == "promoted"


async def test_a_run_keeps_the_candidate_and_is_kept_with_it(
    data_dir: Path, database_url: str, database: Database
) -> None:
    backend = ScriptedBackend()
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), backend) as client:
        id = await running_release(database)  # the step 2 for the name of the step 1
        request = {"iterations": 6, "model": {"project": "mail", "name": "agent"}, "checkpoints": {"keep_last": 1}}
        run_id = (await client.post("/learn-loop", json=request)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        steps = await backend.checkpoints("mail", "agent")
        assert {1, 2, 6} <= steps
        assert not {3, 4} & steps

        refused = await client.delete(f"/runs/{run_id}")
        assert (refused.status_code, refused.json()["release_id"]) == (409, id)
        assert "It needs mail/agent." in refused.json()["detail"]
        assert (await client.get(f"/runs/{run_id}")).status_code == 200
        assert await backend.checkpoints("mail", "agent") == steps

        assert (await client.delete("/promotions/mail/live?end_release=true")).status_code == 200
        assert (await client.delete(f"/runs/{run_id}")).status_code == 200
        assert await backend.checkpoints("mail", "agent") == set()


async def test_checkpoints_of_a_live_release_are_not_deleted(stage: ModelStage) -> None:
    client = stage.service.client
    client.headers.update(bearer(await stage.key()))
    name = await trained_model(stage.engine, "protected", 3)
    await client.post(f"/models/{name}/promote", json={"step": 1, "as": "kept"})
    release = {"step": 2, "skip_trial": True}
    id = (await client.post("/promotions/mail/kept/releases", json=release)).raise_for_status().json()["release_id"]
    async with engine_http(stage.engine) as http:
        listed = (await http.get("/preview/models")).json()["data"]
    [model_id] = [listed_model["id"] for listed_model in listed if listed_model["name"] == "protected"]
    model = f"/v1/preview/models/{model_id}"

    async def remaining_steps() -> list[int]:
        return [checkpoint["step"] for checkpoint in (await _read(client, f"/models/{name}"))["checkpoints"]]

    for step, role in ((1, "stable checkpoint"), (2, "candidate")):
        refused = await client.delete(f"/models/{name}/checkpoints/{step}")
        detail = f"Checkpoint {step} of {name} is the {role} of release {id} of mail/kept."
        assert (refused.status_code, refused.json()["detail"]) == (409, detail)
        by_art = await client.request("DELETE", f"{model}/checkpoints", json={"steps": [0, step]})
        assert (by_art.status_code, by_art.json()["error"]["message"]) == (409, detail)
    whole = await client.delete(model)
    assert (whole.status_code, f"Release {id} of mail/kept is live" in whole.text) == (409, True)
    assert await remaining_steps() == [0, 1, 2, 3]

    await client.post(f"/releases/{id}/rollback")
    assert (await client.delete(f"/models/{name}/checkpoints/2")).status_code == 200
    assert "is promoted as mail/kept" in (await client.delete(f"/models/{name}/checkpoints/1")).json()["detail"]
    assert await remaining_steps() == [0, 1, 3]


async def test_releases_in_the_terminal(
    data_dir: Path, database_url: str, learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:

        async def command(*arguments: str) -> Any:
            return await asyncio.to_thread(learnloop, *arguments, "--url", str(client.base_url))

        first = (await started_release(client))["release_id"]
        description = (await command("promotions", "describe", "learnloop/live")).stdout
        assert f"{first} is running: learnloop/m@2 has a share of 5%, stage 1 of 3" in description
        assert (await client.post(f"/releases/{first}/promote")).status_code == 202
        assert f"release {first}" in (await command("promotions", "list")).stdout
        description = (await command("promotions", "describe", "learnloop/live")).stdout
        assert [line.split() for line in description.splitlines() if "release" in line] == [
            ["evidence", "release", f"{first},", "by", "person"]
        ]

        promote = ("models", "promote", "learnloop/m", "--step", "1", "--as", "live")
        delete = ("promotions", "delete", "learnloop/live", "--yes")
        for arguments, message in ((promote, "is now learnloop/m@1"), (delete, "is deleted")):
            id = (await started_release(client, step=3))["release_id"]
            refused = await command(*arguments)
            assert (refused.exit_code, id in refused.stderr, "--end-release" in refused.stderr) == (1, True, True)
            forced = await command(*arguments, "--end-release")
            assert (forced.exit_code, message in forced.stdout) == (0, True), forced.stderr
            assert (await _read(client, f"/releases/{id}"))["state"] == "overtaken"
