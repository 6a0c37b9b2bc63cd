"""A promoted name means a checkpoint and its prompt: in questions, sessions, `/v1` and releases."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from learnloop_service.app.db.tables import Promotion
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.environment.json_type import Json
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.integration.app.release_traffic import QUESTION, release_of, user_of
from tests.integration.app.release_traffic import stage as stage
from tests.integration.cli.conftest import Learnloop
from tests.integration.cli.conftest import learnloop as learnloop

KIND, SHORT = {"parts": {"system": "Be kind. {original}"}}, {"parts": {"system": "Be short."}}
SEARCH = {"name": "search", "description": "Search by one word.", "parameters": {"type": "object", "properties": {}}}
TOOLED: dict[str, Any] = {"parts": {"system": "You work on {query_date} alone.", "tool:search": SEARCH["description"]}}


@pytest.fixture(autouse=True)
async def _key(stage: ModelStage) -> None:
    stage.service.client.headers.update(bearer(await stage.key()))


async def _stored(stage: ModelStage, prompt: Json, name: str) -> Json:
    stored = await stage.service.client.post("/prompts", params={"name": name}, json=prompt)
    return stored.raise_for_status().json()


async def _promoted(stage: ModelStage, model: str = CALLER, **request: Json) -> Json:
    promoted = await stage.service.client.post(f"/models/{model}/promote", json={"step": 1, "as": "live", **request})
    assert promoted.status_code == 201, promoted.text
    return promoted.json()


async def _system_message(stage: ModelStage, **request: Json) -> str:
    client = stage.service.client
    asked = await client.post("/ask", json={"model": "mail/live", **QUESTION, **request})
    trajectory = await client.get(f"/trajectories/{asked.raise_for_status().json()['trajectory_id']}")
    text: str = trajectory.raise_for_status().json()["messages"][0]["content"]
    return text


async def test_a_name_has_a_prompt_and_going_back_brings_both_back(stage: ModelStage) -> None:
    client = stage.service.client
    kind, short = await _stored(stage, KIND, "kind"), await _stored(stage, SHORT, "short")
    first = await _promoted(stage, prompt="kind")
    assert first["prompt"] == {"sha256": kind["sha256"], "name": "kind", "version": 1}
    [warning] = first["warnings"]
    assert "never evaluated with the prompt kind@1, and was trained with the environment's own texts" in warning
    assert f"learnloop eval --model {CALLER}@1 --prompt - --prompt kind@1" in warning
    assert (await _system_message(stage)).startswith("Be kind. You")
    assert not (await _system_message(stage, prompt=None)).startswith("Be kind.")

    await _promoted(stage, step=0, prompt="short@1")
    assert await _system_message(stage) == "Be short."
    back = await _promoted(stage)  # the older checkpoint again, as before
    assert (back["prompt"], back["warnings"]) == (first["prompt"], [])
    assert (await _system_message(stage)).startswith("Be kind.")
    [listed] = (await client.get("/promotions")).json()["items"]
    assert (listed["step"], listed["prompt"]["name"]) == (1, "kind")
    history = (await client.get("/promotions/mail/live")).json()["items"]
    assert [promotion["prompt"]["name"] for promotion in history] == ["kind", "short", "kind"]

    assert (await _promoted(stage, prompt=None))["prompt"] is None
    assert (await _promoted(stage, prompt=None, **{"as": "other"}))["warnings"] == []
    unknown = await client.post(f"/models/{CALLER}/promote", json={"step": 1, "as": "live", "prompt": "gone"})
    assert (unknown.status_code, unknown.json()["errors"][0]["loc"]) == (422, ["body", "prompt"])
    used = await client.delete(f"/prompts/{short['sha256']}")
    assert (used.status_code, used.json()["used_by"]["promotions"]) == (409, ["mail/live"])
    listed = (await stage.service.client.get("/prompts")).json()["items"]
    assert {prompt["name"]: prompt["used_by"] for prompt in listed}["kind"] == used.json()["used_by"]


async def test_an_evaluation_in_another_project_is_refused(stage: ModelStage) -> None:
    await _stored(stage, KIND, "kind")
    await _promoted(stage, prompt="kind")
    await stage.run_of()
    request = {"models": [{"model": "mail/live"}], "scenarios": 1}
    anybody = bearer(await stage.key("*"))  # whose evaluations belong to the project of the service
    refused = await stage.service.client.post("/evaluations", json=request, headers=anybody)
    assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, ["body", "models", 0, "prompt"])


async def test_a_prompt_is_promoted_for_a_base_model(stage: ModelStage) -> None:
    client = stage.service.client
    await _stored(stage, KIND, "kind")
    promoted = await _promoted(stage, "mail/kind-tiny", step=0, base_model="tiny", prompt="kind")
    assert (promoted["model"], promoted["step"], promoted["prompt"]["name"]) == ("mail/kind-tiny", 0, "kind")
    assert (await _system_message(stage)).startswith("Be kind.")
    again = await _promoted(stage, "mail/kind-tiny", step=0, base_model="tiny")
    assert again["prompt"] == promoted["prompt"]
    path = "/models/mail/kind-tiny/promote"
    for request, status, says in (
        ({"step": 0, "base_model": "huge"}, 422, "There is no base model 'huge'"),
        ({"step": 1, "base_model": "tiny"}, 422, "a base model is promoted as step 0"),
    ):
        refused = await client.post(path, json={"as": "live", **request})
        assert (refused.status_code, says in refused.text) == (status, True), refused.text


def _requests(system: str, tools: bool = True) -> dict[str, dict[str, Json]]:
    """The same request in each protocol, by its path."""
    function: list[Json] = [{"type": "function", "function": SEARCH}] if tools else []
    flat: list[Json] = [{"type": "function", **SEARCH}] if tools else []
    named = {name: SEARCH[name] for name in ("name", "description")}
    theirs: list[Json] = [{**named, "input_schema": SEARCH["parameters"]}] if tools else []
    hello = {"role": "user", "content": "Hello"}
    return {
        "chat/completions": {
            "messages": [{"role": "system", "content": system}, hello],
            "max_tokens": 2,
            **({"tools": function} if tools else {}),
        },
        "responses": {"instructions": system, "input": "Hello", "max_output_tokens": 16, "tools": flat},
        "messages": {"system": system, "messages": [hello], "max_tokens": 2, "tools": theirs},
    }


async def _deliveries(stage: ModelStage, base: str, requests: Mapping[str, Json], **more: Any) -> dict[str, str]:
    """The header of the reply to each request."""
    headers = {}
    for path, body in requests.items():
        reply = await stage.service.client.post(f"{base}/{path}", json={"model": "mail/live", **body}, **more)
        assert reply.status_code == 200, reply.text
        headers[path] = reply.headers.get("Learnloop-Prompt")
    return headers


async def test_replies_say_what_became_of_the_prompt(stage: ModelStage) -> None:
    client = stage.service.client
    sha = (await _stored(stage, TOOLED, "tooled"))["sha256"][:12]
    await _promoted(stage)
    applied, missing = _requests("You work on Monday alone. Now work."), _requests("You work on Monday.")
    assert set((await _deliveries(stage, "/v1", applied)).values()) == {None}
    await _promoted(stage, prompt="tooled")
    session = (await client.post("/sessions", json={"model": "live"})).raise_for_status().json()
    assert session["prompt"]["parts"] == TOOLED["parts"]
    assert (session["prompt"]["name"], session["prompt"]["version"]) == ("tooled", 1)
    base, key = f"/sessions/{session['id']}/v1", {"headers": bearer(session["api_key"])}
    for path, more in (("/v1", {}), (base, key)):
        assert set((await _deliveries(stage, path, applied, **more)).values()) == {f"{sha}; applied"}, path
    whole = (await client.get(f"/sessions/{session['id']}")).json()
    assert (whole["prompt"]["name"], whole["warnings"]) == ("tooled", [])
    assert (await client.get("/promotions")).json()["items"][0]["prompt_missed_at"] is None

    for path, more in (("/v1", {}), (base, key)):
        assert set((await _deliveries(stage, path, missing, **more)).values()) == {f"{sha}; not-used"}, path
    untooled = await _deliveries(stage, "/v1", _requests("You work on Monday alone.", tools=False))
    assert set(untooled.values()) == {f"{sha}; not-used"}
    streamed = {path: {**body, "stream": True} for path, body in applied.items()}
    for path, more in (("/v1", {}), (base, key)):
        assert set((await _deliveries(stage, path, streamed, **more)).values()) == {f"{sha}; applied"}, path
    whole = (await client.get(f"/sessions/{session['id']}")).json()
    assert whole["warnings"] == ["A request came without the prompt tooled@1."]
    assert (await client.get("/promotions")).json()["items"][0]["prompt_missed_at"] is not None
    metrics = (await client.get("/metrics", headers=bearer(await stage.key("*")))).text
    assert 'learnloop_prompt_requests_total{delivery="not-used"}' in metrics


async def test_a_session_keeps_its_checkpoint_and_its_prompt(stage: ModelStage) -> None:
    client = stage.service.client
    await _stored(stage, KIND, "kind")
    await _stored(stage, SHORT, "short")
    await _promoted(stage, prompt="kind")
    session = (await client.post("/sessions", json={"model": "mail/live"})).raise_for_status().json()
    await _promoted(stage, step=0, prompt="short")
    restarted = (await client.post(f"/sessions/{session['id']}/restart")).raise_for_status().json()
    assert restarted["prompt"] == session["prompt"]
    whole = (await client.get(f"/sessions/{session['id']}")).json()
    assert (whole["checkpoint"], whole["prompt"]["name"]) == (f"{CALLER}@1", "kind")


async def test_users_of_a_release_meet_the_prompt_of_their_arm(stage: ModelStage) -> None:
    kind, short = await _stored(stage, KIND, "kind"), await _stored(stage, SHORT, "short")
    await _promoted(stage, prompt="kind")
    columns = {"prompt_sha256": short["sha256"], "prompt_name": "short", "prompt_version": 1}
    await release_of(stage, step=1, **columns)
    for arm, begins, stored in ((Arm.STABLE, "Be kind.", kind), (Arm.CANDIDATE, "Be short.", short)):
        user = user_of(arm)
        assert (await _system_message(stage, user=user)).startswith(begins)
        session = await stage.service.client.post("/sessions", json={"model": "mail/live", "user": user})
        assert session.raise_for_status().json()["prompt"]["sha256"] == stored["sha256"]
        for requests in (_requests("Be kind. And more."), _requests("Be short.")):
            is_its = requests["messages"]["system"].startswith(begins)
            headers = {"Learnloop-User": user}
            deliveries = await _deliveries(stage, "/v1", requests, headers=headers)
            delivery = "applied" if is_its else "not-used"
            assert set(deliveries.values()) == {f"{stored['sha256'][:12]}; {delivery}"}
    async with stage.service.database() as tx:
        promotion = await tx.get_one(Promotion, 1)
    assert promotion.prompt_missed_at is not None


async def test_promoted_prompts_in_the_terminal(
    stage: ModelStage, learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _stored(stage, KIND, "kind")
    monkeypatch.setenv("LEARNLOOP_API_KEY", await stage.key())
    monkeypatch.setenv("COLUMNS", "200")
    url = str(stage.service.client.base_url)

    async def command(*arguments: str) -> Any:
        ran = await asyncio.to_thread(learnloop, *arguments, "--url", url)
        assert ran.exit_code == 0, ran.stderr
        return ran

    promoting = ("models", "promote", CALLER, "--step", "1", "--as", "live")
    assert (await command(*promoting)).stdout == f"mail/live is now {CALLER}@1\n"
    promoted = await command(*promoting, "--prompt", "kind@1")
    assert promoted.stdout == f"mail/live is now {CALLER}@1 with kind@1\n"
    assert "never evaluated with the prompt kind@1" in promoted.stderr
    assert f"{CALLER}@1 with kind@1  by key:" in (await command("models", "history", "mail/live")).stdout
    assert f"{CALLER}@1 with kind@1" in (await command("promotions", "list")).stdout
    assert "a request came without it" not in (await command("promotions", "describe", "mail/live")).stdout
    await _deliveries(stage, "/v1", _requests("Be cruel."))
    assert "a request came without it at 2" in (await command("deployments", "describe", "mail/live")).stdout

    started = (await command("releases", "start", "mail/live", "--prompt", "-", "--skip-trial")).stdout
    assert f"of {CALLER}@1 for mail/live" in started
    shown = (await command("releases", "show", started.split()[1])).stdout
    assert f"{CALLER}@1 with kind@1" in shown
    assert f"{CALLER}@1 has a share of" in (await command("promotions", "describe", "mail/live")).stdout
    base = await command("models", "promote", "mail/new", "--base", "tiny", "--as", "base", "--prompt", "kind")
    assert base.stdout == "mail/base is now mail/new@0 with kind@1\n"
