"""Promoted names: whether they answer, what they were asked, and taking them away."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import insert

from learnloop_service.app.db.tables import Promotion
from learnloop_service.environment.email_search.synthetic import address_of
from learnloop_service.environment.json_type import Json
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.integration.cli.conftest import Learnloop
from tests.integration.cli.conftest import learnloop as learnloop

LIVE = "/promotions/mail/live"
QUESTION = {"question": "When is the kickoff?", "inbox_address": address_of("test", 0, 3)}


@pytest.fixture(autouse=True)
async def _promoted(stage: ModelStage) -> None:
    stage.service.client.headers.update(bearer(await stage.key()))
    promoted = await stage.service.client.post(f"/models/{CALLER}/promote", json={"step": 1, "as": "live"})
    assert promoted.status_code == 201, promoted.text


async def _ask(stage: ModelStage, model: str) -> Json:
    return await stage.service.client.post("/ask", json={"model": model, **QUESTION})


async def test_a_check_says_whether_the_checkpoint_itself_answers(stage: ModelStage) -> None:
    client = stage.service.client
    checked = (await client.post(f"{LIVE}/check")).json()
    assert (checked["healthy"], checked["answered_by"], checked["reason"]) == (True, f"{CALLER}@1", None)

    lost = {
        "project": "mail",
        "name": "live",
        "backend": "embedded",
        "model_name": "caller",
        "step": 7,
        "actor": "local",
    }
    async with stage.service.database.begin() as tx:
        await tx.execute(insert(Promotion), [lost])
    broken = (await client.post(f"{LIVE}/check")).json()
    assert (broken["healthy"], broken["answered_by"]) == (False, None)
    assert broken["reason"] == f"{CALLER} has no checkpoint 7"


async def test_what_a_name_was_asked_is_listed_whoever_answers(stage: ModelStage) -> None:
    client = stage.service.client
    first = (await _ask(stage, "mail/live")).json()["trajectory_id"]
    await _ask(stage, f"{CALLER}@1")  # the same checkpoint, by another name
    await client.post(f"/models/{CALLER}/promote", json={"step": 0, "as": "live"})
    second = (await _ask(stage, "live")).json()["trajectory_id"]

    listed = (await client.get(f"{LIVE}/requests", params={"limit": 1})).json()
    assert [(item["id"], item["model"]) for item in listed["items"]] == [(second, f"{CALLER}@0")]
    assert listed["items"][0]["scenario"]["task"]["question"] == QUESTION["question"]
    more = (await client.get(f"{LIVE}/requests", params={"cursor": listed["next_cursor"]})).json()
    assert ([item["id"] for item in more["items"]], more["next_cursor"]) == ([first], None)

    stranger = bearer(await stage.key("sales"))
    for method, path in (("GET", f"{LIVE}/requests"), ("POST", f"{LIVE}/check"), ("DELETE", LIVE)):
        assert (await client.request(method, path, headers=stranger)).status_code == 404
    reader = bearer(await stage.key(scopes=["read"]))
    assert (await client.get(f"{LIVE}/requests", headers=reader)).status_code == 200
    assert (await client.post(f"{LIVE}/check", headers=reader)).status_code == 403  # it uses the model


async def test_a_name_is_taken_away_and_given_again(stage: ModelStage) -> None:
    client = stage.service.client
    gone = (await client.delete(LIVE)).json()
    assert (gone["model"], gone["step"]) == (CALLER, 1)
    assert gone["withdrawn_at"] is not None
    assert (await _ask(stage, "mail/live")).status_code == 404
    for method, path in (("GET", LIVE), ("GET", f"{LIVE}/requests"), ("POST", f"{LIVE}/check"), ("DELETE", LIVE)):
        assert (await client.request(method, path)).status_code == 404
    assert (await client.get("/promotions")).json()["items"] == []
    listed = (await client.get("/v1/models")).json()["data"]
    assert "mail/live" not in [model["id"] for model in listed]
    checkpoint = (await client.get(f"/models/{CALLER}")).json()["checkpoints"][1]
    assert checkpoint["promoted_as"] == []

    await client.post(f"/models/{CALLER}/promote", json={"step": 0, "as": "live"})
    history = (await client.get(LIVE)).json()["items"]
    assert [(promotion["step"], promotion["withdrawn_at"] is None) for promotion in history] == [(0, True), (1, False)]


async def test_promoted_names_in_the_terminal(
    stage: ModelStage, learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEARNLOOP_API_KEY", await stage.key())
    monkeypatch.setenv("COLUMNS", "200")
    url = str(stage.service.client.base_url)

    async def command(*arguments: str) -> Any:
        return await asyncio.to_thread(learnloop, "promotions", *arguments, "--url", url)

    assert (await command("logs", "mail/live")).stdout == "no requests\n"
    await _ask(stage, "mail/live")
    assert f"mail/live  {CALLER}@1" in (await command("list")).stdout
    described = await command("describe", "mail/live")
    assert described.exit_code == 0, described.stderr
    for line in (
        f"{CALLER}@1 on embedded",
        f"{url.rstrip('/')}/v1 (any OpenAI client; model mail/live)",
        "answers, in",
    ):
        assert line in described.stdout
    assert (await command("describe", "mail/live", "--json")).json["health"]["healthy"] is True
    logs = (await command("logs", "mail/live")).stdout
    assert f"{QUESTION['question']} -> " in logs

    unconfirmed = await command("delete", "mail/live")
    assert (unconfirmed.exit_code, "confirm with --yes" in unconfirmed.stderr) == (1, True)
    deleted = await command("delete", "mail/live", "--yes")
    assert deleted.stdout == f"mail/live is deleted; {CALLER}@1 is still there\n"
    missing = await command("describe", "mail/live")
    assert (missing.exit_code, "No checkpoint is promoted to 'mail/live'" in missing.stderr) == (1, True)
    assert "No name is promoted" in (await command("list")).stdout
    for wrong in ("live", "mail/live@3"):
        assert (await command("describe", wrong)).exit_code == 1
