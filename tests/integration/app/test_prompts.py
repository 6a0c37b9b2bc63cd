"""Prompts over HTTP: stored and versioned, and what they do in evaluations, runs and questions."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.environment.json_type import Json
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, ScriptedChat, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.hinted_prompts import HINT, HINTED, right_when_hinted, store
from tests.integration.app.keyed import keyed
from tests.integration.app.served import run_with, served, settings_for

AGENTS = "tests.fakes.own_agents"
TASKS = [{"task": {"question": f"number {number}?"}} for number in range(60)]
ENDED = ("completed", "failed", "cancelled", "paused")


@asynccontextmanager
async def service(data_dir: Path, database_url: str, chat: ScriptedChat) -> AsyncIterator[httpx.AsyncClient]:
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes")
    async with served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
        yield client


async def evaluated(client: httpx.AsyncClient, **request: Any) -> Json:
    """The evaluation once it has ended."""
    posted = await client.post("/evaluations", json=request)
    assert posted.status_code == 202, posted.text

    async def ask() -> Json:
        return (await client.get(f"/evaluations/{posted.json()['evaluation_id']}")).raise_for_status().json()

    return await answered(ask, lambda evaluation: evaluation["status"] in ENDED)


async def first_messages(client: httpx.AsyncClient, path: str) -> list[str]:
    """The system message of each trajectory of an evaluation or a run."""
    rows = (await client.get(f"{path}/trajectories", params={"limit": 200})).raise_for_status().json()["items"]
    whole = [(await client.get(f"/trajectories/{row['id']}")).raise_for_status().json() for row in rows]
    return [trajectory["messages"][0]["content"] for trajectory in whole]


async def test_prompts_are_versioned_by_name_and_found_by_hash(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, service(data_dir, database_url, chat) as client:
        first, other = (await store(client, HINTED)).json(), {"parts": {"system": "Be kind."}}
        assert (first["name"], first["version"], first["count"]) == ("hinted", 1, 2)
        assert (await store(client, HINTED)).json() == first
        second = (await store(client, other)).json()
        assert second["version"] == 2
        listed = (await client.get("/prompts", params={"name": "hinted"})).json()["items"]
        assert [prompt["version"] for prompt in listed] == [2, 1]
        whole = (await client.get(first["links"]["self"])).json()
        assert whole == {"prompt": HINTED | {"replaces": {}}}
        deleted = (await client.delete(f"/prompts/{second['sha256']}")).json()
        assert deleted["names"] == ["hinted@2"]
        assert (await client.get(f"/prompts/{second['sha256']}")).status_code == 404


async def test_a_prompt_decides_and_its_gate_says_so_early(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, service(data_dir, database_url, chat) as client:
        stored = (await store(client, HINTED)).json()
        models = [{"model": "learnloop/tiny", "prompt": None}, {"prompt": "hinted@1"}]
        evaluation = await evaluated(client, models=models, scenarios=64, gate={})
        assert evaluation["status"] == "completed", evaluation["error"]
        report = evaluation["report"]
        plain, hinted = report["models"]
        assert plain["label"] == "learnloop/tiny"
        assert hinted["label"] == "learnloop/tiny with hinted@1"
        assert hinted["prompt"] == {"sha256": stored["sha256"], "name": "hinted", "version": 1}
        assert hinted["success"]["mean"] == 1.0
        assert plain["success"]["mean"] == 0.0
        assert report["gate"] == {
            "decision": "better",
            "error": 0.05,
            "tasks": 16,
            "won": 16,
            "lost": 0,
            "log_wealth": pytest.approx(report["gate"]["log_wealth"]),
        }
        assert evaluation["done"] == 32, "it ends when it is decided"
        described = {
            request["messages"][0]["content"].endswith(HINT): request["tools"][1]["function"]["description"]
            for request in chat.requests
            if "messages" in request
        }
        assert described[True] == f"Open a mail. {described[False]}"
        used = await client.delete(f"/prompts/{stored['sha256']}")
        assert used.status_code == 409
        uses = {"runs": [], "evaluations": [evaluation["evaluation_id"]], "promotions": [], "releases": []}
        assert used.json()["used_by"] == uses
        assert [prompt["used_by"] for prompt in (await client.get("/prompts")).json()["items"]] == [uses]


async def test_a_run_its_evaluations_and_questions_have_its_prompt(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, service(data_dir, database_url, chat) as client:
        stored = (await store(client, HINTED)).json()
        small = {"groups_per_iteration": 1, "rollouts_per_group": 2, "iterations": 1}
        held_out = {"scenarios": 1, "test_scenarios": 1, "samples": 1}
        body = {**small, "evaluation": held_out, "prompt": "hinted"}
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        run = await run_with(client, run_id, "completed", "failed")
        assert run["status"] == "completed", run["error"]
        rows = (await client.get(f"/runs/{run_id}/trajectories")).raise_for_status().json()["items"]
        assert {row["prompt_sha256"] for row in rows} == {stored["sha256"]}
        messages = await first_messages(client, f"/runs/{run_id}")
        assert messages
        assert all(message.endswith(HINT) for message in messages)

        evaluation = await evaluated(client, run_id=run_id, scenarios=1, models=[{"model": run_id}])
        [model] = evaluation["report"]["models"]
        assert model["prompt"]["name"] == "hinted"

        task = {"run_id": run_id, "question": "When?", "inbox_address": "test.0.1@inbox.example"}
        for prompt_choice, is_hinted in (({}, True), ({"prompt": None}, False)):
            answer = (await client.post("/ask", json=task | prompt_choice)).raise_for_status().json()
            trajectory = (await client.get(f"/trajectories/{answer['trajectory_id']}")).json()
            assert trajectory["messages"][0]["content"].endswith(HINT) is is_hinted

        fork = await client.post(f"/runs/{run_id}/fork", json={"iterations": 1})
        forked = await run_with(client, fork.raise_for_status().json()["run_id"], "completed", "failed")
        assert all(text.endswith(HINT) for text in await first_messages(client, f"/runs/{forked['run_id']}"))


async def says_yes(request: Mapping[str, Json]) -> Reply:
    return Reply(content="yes")


@pytest.mark.parametrize(("agent", "arrives"), [("prompted", True), ("scoring", False)])
async def test_an_own_agent_reads_its_prompt_or_is_unreachable(
    data_dir: Path, database_url: str, agent: str, arrives: bool
) -> None:
    config = {"scenarios": TASKS, "runner": {"python": f"{AGENTS}:{agent}"}}
    async with scripted_chat(says_yes) as chat, service(data_dir, database_url, chat) as client:
        await store(client, {"parts": {"system": "Say yes."}}, "yes")
        evaluation = await evaluated(
            client,
            environment={"name": "agent", "config": config},
            judge={"name": "reported"},
            models=[{"prompt": "yes"}],
            scenarios=4,
        )
        [model] = evaluation["report"]["models"]
        if arrives:
            assert evaluation["status"] == "completed", evaluation["error"]
            assert model["success"]["mean"] == 1.0
        else:
            assert evaluation["status"] == "failed"
            assert "its prompt is unreachable: 4 of 4 rollouts" in model["error"]


@pytest.mark.parametrize(
    ("prompt", "location", "says"),
    [
        ({"parts": {}}, ["body"], "there are no parts"),
        ({"parts": {"tone": "a"}}, ["body", "parts", "tone"], "not one of"),
        ({"parts": {"system": "a" * 40_000}}, ["body"], "40,000 bytes"),
        ({"parts": {"system": 3}}, ["body", "parts", "system"], "string"),
        ({"part": {}}, ["body", "parts"], "required"),
    ],
)
async def test_a_prompt_that_cannot_be_stored_is_refused_by_its_part(
    data_dir: Path, database_url: str, prompt: Json, location: list[str], says: str
) -> None:
    async with scripted_chat(says_yes) as chat, service(data_dir, database_url, chat) as client:
        refused = await store(client, prompt)
        assert refused.status_code == 422
        faults = {tuple(fault["loc"]): fault["msg"] for fault in refused.json()["errors"]}
        assert says.lower() in faults[tuple(location)].lower()


async def test_requests_with_an_unsuitable_prompt_are_refused(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(says_yes) as chat, service(data_dir, database_url, chat) as client:
        await store(client, {"parts": {"system": "Hello {nobody}"}}, "unfit")
        await store(client, {"parts": {"tool:search": "Search."}}, "toolless")
        where = ["body", "models", 0, "prompt"]
        for request, path, location, says in (
            ({"models": [{"prompt": "unfit"}]}, "/evaluations", where, "no placeholder {nobody}"),
            ({"models": [{"prompt": "toolless"}]}, "/evaluations", where, "there is no tool 'search'"),
            ({"models": [{"prompt": "gone"}]}, "/evaluations", where, "there is no prompt 'gone'"),
            ({"models": [{"prompt": "unfit@7"}]}, "/evaluations", where, "there is no prompt 'unfit@7'"),
            ({"prompt": "unfit"}, "/learn-loop", ["body", "prompt"], "no placeholder {nobody}"),
            ({"prompt": "0" * 64}, "/learn-loop", ["body", "prompt"], "no stored prompt"),
        ):
            refused = await client.post(path, json=request)
            assert refused.status_code == 422, refused.text
            [fault] = refused.json()["errors"]
            assert fault["loc"] == location
            assert says in fault["msg"]


async def test_a_gate_needs_two_models_and_enough_scenarios(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(says_yes) as chat, service(data_dir, database_url, chat) as client:
        two = [{"model": "learnloop/tiny", "label": label} for label in "ab"]
        for request, says in (
            ({"models": two[:1], "gate": {}}, "a gate compares two models, and there are 1"),
            ({"models": two, "gate": {}, "scenarios": 7}, "a gate needs at least 8 scenarios"),
        ):
            refused = await client.post("/evaluations", json=request)
            assert refused.status_code == 422
            assert says in refused.text


async def test_prompts_of_one_project_are_not_found_by_another(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        own_headers, theirs = await service.headers("mine"), await service.headers("theirs")
        stored = (await store(service.client, HINTED, headers=own_headers)).json()
        path = f"/prompts/{stored['sha256']}"
        assert (await service.client.get(path, headers=own_headers)).status_code == 200
        assert (await service.client.get(path, headers=theirs)).status_code == 404
        assert (await service.client.delete(path, headers=theirs)).status_code == 404
        assert (await service.client.get("/prompts", headers=theirs)).json()["items"] == []


async def test_a_part_that_nobody_reads_is_unreachable(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(says_yes) as chat, service(data_dir, database_url, chat) as client:
        await store(client, {"parts": {"skill:refunds": "Pay them back."}}, "unread")
        evaluation = await evaluated(client, models=[{"prompt": "unread"}], scenarios=4)
        assert evaluation["status"] == "failed"
        assert "its prompt is unreachable: 4 of 4 rollouts" in evaluation["report"]["models"][0]["error"]
