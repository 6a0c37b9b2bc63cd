"""Prompts that replace the texts of an agent that nobody can change: found in its requests, and put there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.runner import runner
from tests.integration.app.fixed_agents import (
    DESK,
    HINT,
    FixedAgent,
    chat_body,
    environment,
    messages_body,
    responses_body,
    service,
)
from tests.integration.app.own_agent_runs import SMALL
from tests.integration.app.served import run_with
from tests.opened_database import execute

ENDED = ("completed", "failed", "cancelled", "paused")


async def evaluated(client: httpx.AsyncClient, url: str, *prompts: str | None, **more: Json) -> Json:
    """The evaluation of the agent with the prompts once it has ended."""
    models = [{"model": "learnloop/tiny", "prompt": prompt, "label": str(prompt)} for prompt in prompts]
    body = {"environment": environment(url), "judge": {"name": "reported"}, "models": models, "scenarios": 4} | more
    posted = await client.post("/evaluations", json=body)
    assert posted.status_code == 202, posted.text

    async def ask() -> Json:
        return (await client.get(f"/evaluations/{posted.json()['evaluation_id']}")).raise_for_status().json()

    return await answered(ask, lambda evaluation: evaluation["status"] in ENDED)


async def find(client: httpx.AsyncClient, **subject: str) -> Json:
    response = await client.post("/prompts/found", params={"name": "desk"} | subject)
    assert response.status_code == 201, response.text
    return response.json()


async def digests(database_url: str, evaluation: Json) -> Mapping[str, set[str]]:
    """The digests of the requests of each model's rollouts."""
    rows = await execute(
        database_url,
        "SELECT split_part(entry, '/', 1), digest FROM session_call JOIN agent_session ON id = session_id "
        "WHERE evaluation_id = :id",
        id=evaluation["evaluation_id"],
    )
    return {model: {digest for number, digest in rows if number == model} for model, _ in rows}


@pytest.mark.parametrize("body", [chat_body, responses_body, messages_body])
async def test_a_prompt_takes_the_place_of_the_agents_own(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    monkeypatch.setattr("learnloop_service.app.worker.agent_dispatch.DELAYS_S", (0.0, 0.0))
    agent = FixedAgent(body)
    async with service(data_dir, database_url) as client, runner(agent) as it:
        plain = await evaluated(client, it.url, None)
        assert plain["status"] == "completed", plain["error"]
        desk = await find(client, evaluation=plain["evaluation_id"])
        assert (desk["name"], desk["version"], desk["requests"], desk["omitted"]) == ("desk", 1, 4, {})
        assert desk["origin"]["found_in"] == {"evaluation": plain["evaluation_id"]}
        texts = (await client.get(desk["links"]["self"])).json()["prompt"]
        texts_of_agent = {"system": DESK, "tool:look": "Look it up."}
        assert texts == {"parts": texts_of_agent, "replaces": texts_of_agent}
        changed = {"parts": {"system": f"{{original}}\r\n{HINT}"}}
        stored = await client.post("/prompts", params={"name": "desk", "parent": "desk@1"}, json=changed)
        assert stored.json()["version"] == 2
        assert stored.json()["origin"]["parent"] == "desk@1"

        agent.crashes = 0
        both = await evaluated(client, it.url, None, "desk@1", "desk@2")
        assert both["status"] == "completed", both["error"]
        assert [model["success"]["mean"] for model in both["report"]["models"]] == [0.0, 0.0, 1.0]
        requests = await digests(database_url, both)
        assert requests["0"] == requests["1"] == (await digests(database_url, plain))["0"]
        assert len(requests["2"]) == 4, "an attempt after a crash makes the same requests again"
        assert requests["2"].isdisjoint(requests["0"])
        rows = (await client.get(f"/evaluations/{both['evaluation_id']}/trajectories")).json()["items"]
        whole = [(await client.get(f"/trajectories/{row['id']}")).json() for row in rows]
        systems = [row["messages"][0]["content"] for row in whole if row["prompt_sha256"] == stored.json()["sha256"]]
        assert len(systems) == 4
        assert all(system.startswith(f"{DESK}\r\n{HINT}\nThe customer") for system in systems)


async def test_an_agent_whose_code_has_changed_is_unreachable(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client:
        async with runner(FixedAgent()) as it:
            await find(client, evaluation=(await evaluated(client, it.url, None))["evaluation_id"])
        # The new text is in the request, and yet it was not put there.
        shorter = {"parts": {"system": "You answer at the help desk."}}
        await client.post("/prompts", params={"name": "desk", "parent": "desk"}, json=shorter)
        async with runner(FixedAgent(prompt=f"{DESK} Be kind.\r\nBye.".replace("brief", "terse"))) as it:
            evaluation = await evaluated(client, it.url, None, "desk@2")
        plain, new = evaluation["report"]["models"]
        assert plain["error"] is None
        assert "its prompt is unreachable: 4 of 4 rollouts" in new["error"]


async def test_a_request_for_a_title_before_the_work_does_not_count(data_dir: Path, database_url: str) -> None:
    messages = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": "Hello"}]
    agent = FixedAgent(title={"model": "any", "messages": messages})
    async with service(data_dir, database_url) as client, runner(agent) as it:
        plain = await evaluated(client, it.url, None)
        desk = await find(client, evaluation=plain["evaluation_id"])
        texts = (await client.get(desk["links"]["self"])).json()["prompt"]["replaces"]
        assert texts == {"system": DESK, "tool:look": "Look it up."}
        hinted = {"parts": {"system": HINT}}
        await client.post("/prompts", params={"name": "desk", "parent": "desk"}, json=hinted)
        [model] = (await evaluated(client, it.url, "desk"))["report"]["models"]
        assert (model["error"], model["success"]["mean"]) == (None, 1.0)


async def test_a_run_has_replaced_texts(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client, runner(FixedAgent()) as it:
        request = {"environment": environment(it.url), "judge": {"name": "reported"}} | SMALL
        plain = (await client.post("/learn-loop", json=request)).raise_for_status().json()["run_id"]
        await run_with(client, plain, "completed", "failed", "paused")
        await find(client, run=plain)
        await client.post(
            "/prompts", params={"name": "desk", "parent": "desk"}, json={"parts": {"system": f"{{original}} {HINT}"}}
        )
        posted = await client.post("/learn-loop", json=request | {"prompt": "desk"})
        run_id = posted.raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed", "failed", "paused")
        rows = (await client.get(f"/runs/{run_id}/trajectories?limit=200")).json()["items"]
        assert {row["reward"] for row in rows} == {1.0}
        refused = await client.post("/prompts/found", params={"name": "desk", "run": run_id})
        assert refused.status_code == 422
        assert f"All rollouts of run {run_id} had a prompt" in refused.text


async def test_what_cannot_be_replaced_or_found_is_refused(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client, runner(FixedAgent(lambda *_: chat_body("", "Hello"))) as it:
        await client.post("/prompts", params={"name": "plain"}, json={"parts": {"system": "Hello"}})
        function = {"runner": {"python": "tests.fakes.own_agents:prompted"}}
        for path, body, says in (
            ("/evaluations", {"environment": environment(it.url), "models": [{"prompt": "plain"}]}, "replaces no text"),
            ("/learn-loop", {"environment": environment(it.url), "prompt": "plain"}, "replaces no text"),
            ("/learn-loop", {"environment": environment(it.url, prompt="swap")}, "must be read or replace"),
            ("/learn-loop", {"environment": environment(it.url, **function)}, "a Python function reads"),
            ("/prompts?name=a", {"parts": {"system": "a"}, "replaces": {"system": " "}}, "replaces"),
            ("/prompts?name=a", {"parts": {"system": "{day}"}, "replaces": {"system": "b"}}, "there are original"),
            ("/prompts?name=a&parent=gone", {"parts": {"system": "a"}}, "there is no prompt 'gone'"),
        ):
            refused = await client.post(
                path, json={"judge": {"name": "reported"}} | body if "env" in str(body) else body
            )
            assert refused.status_code == 422, refused.text
            assert says in refused.text
        same = await evaluated(client, it.url, None)
        for subject, status, says in (
            ({"evaluation": same["evaluation_id"]}, 422, "first requests of 1 tasks"),
            ({"evaluation": "gone"}, 404, "no evaluation"),
            ({}, 422, "Name an evaluation, or a run"),
        ):
            refused = await client.post("/prompts/found", params={"name": "desk"} | subject)
            assert refused.status_code == status, refused.text
            assert says in refused.text
