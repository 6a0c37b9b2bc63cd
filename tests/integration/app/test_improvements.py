"""Improvements over HTTP, with a scripted model that is right only with a hint in its prompt."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.app.improvements import proposals
from learnloop_service.environment.json_type import Json
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, Script, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.hinted_prompts import HINT, HINTED, right_when_hinted, store
from tests.integration.app.served import served, settings_for

USELESS = {"parts": {"system": "{original} Be brief."}}
PROMPTS_ONLY = {"rungs": ["prompt"], "validation": 8, "test": 8, "target": 0.9}
LIVE = ("running", "paused")


def _engine() -> Script:
    """The scripted model, and an engine whose models have checkpoint 0."""
    models: list[str] = []

    async def reply(request: Mapping[str, Json]) -> Reply:
        if "messages" in request:
            return await right_when_hinted(request)
        if "base_model" in request:
            models.append(f"{request['project']}/{request['name']}")
        return Reply(body={"data": [{"id": name, "steps": [0]} for name in models]})

    return reply


@asynccontextmanager
async def _service(data_dir: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with scripted_chat(_engine()) as chat:
        listed = [{"model": "openai/desk", "base_url": chat.url, "key": "k"}]
        settings = settings_for(data_dir, database_url, engine_url=chat.url.removesuffix("/v1"), models=listed)
        async with served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
            yield client


async def _started(client: httpx.AsyncClient, **request: Any) -> str:
    posted = await client.post("/improvements", json=PROMPTS_ONLY | request)
    assert posted.status_code == 202, posted.text
    return str(posted.json()["id"])


async def _shown(client: httpx.AsyncClient, id: str) -> Json:
    return (await client.get(f"/improvements/{id}")).raise_for_status().json()


async def _ended(client: httpx.AsyncClient, id: str) -> Json:
    return await answered(lambda: _shown(client, id), lambda shown: shown["status"] not in LIVE)


def _states(improvement: Json) -> list[tuple[str, str]]:
    return [(candidate["rung"], candidate["state"]) for candidate in improvement["tried"]]


async def test_a_better_prompt_is_accepted_and_reaches_the_target(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, USELESS, "useless")
        await store(client, HINTED)
        improvement = await _ended(client, await _started(client, prompts=["useless", "hinted@1"]))
        assert improvement["status"] == "reached", improvement["reason"]
        assert improvement["confirmed"]
        assert _states(improvement) == [("as_it_is", "accepted"), ("prompt", "refused"), ("prompt", "accepted")]
        as_it_is, useless, hinted = improvement["tried"]
        assert as_it_is["success"]["mean"] == as_it_is["test"]["mean"] == 0
        assert useless["screening"] == {"won": 0, "lost": 0, "tasks": 4}
        assert "not better on 4 training tasks" in useless["reason"]
        assert (useless["gate_id"], useless["error_share"], useless["test"]) == (None, None, None)
        assert hinted["evidence"] == {"won": 8, "lost": 0, "tasks": 8}
        assert hinted["error_share"] == 0.0125
        assert (hinted["success"]["mean"], hinted["test"]["mean"]) == (1, 1)
        assert hinted["prompt"]["name"] == "hinted"
        assert "a prompt alone reached 100%" in improvement["sentence"].lower()


async def test_an_agent_behind_an_api_gets_better_by_its_prompt(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, HINTED)
        request = {"from": "openai/desk", "prompts": ["hinted"], "rungs": ["prompt", "grpo"]}
        improvement = await _ended(client, await _started(client, **request))
        assert (improvement["status"], improvement["champion"]) == ("reached", 1)
        assert {candidate["model"] for candidate in improvement["tried"]} == {"openai/desk"}
        untrained = await _ended(client, await _started(client, **request | {"prompts": [], "target": None}))
        assert _states(untrained)[-1] == ("grpo", "skipped")
        assert "cannot be trained" in untrained["tried"][-1]["reason"]


async def test_test_tasks_are_done_once_and_at_the_end(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, HINTED)
        id = await _started(client, prompts=["hinted"])
        improvement = await _ended(client, id)
        evaluations = (await client.get("/evaluations")).json()["items"]  # newest first
        splits = []
        for evaluation in evaluations:
            splits.append((await client.get(f"/evaluations/{evaluation['evaluation_id']}")).json()["request"]["split"])
        assert splits == ["test", "validation", "train", "train", "validation"]
        assert improvement["test_looks"] == 1

        higher = await client.post(f"/improvements/{id}/continue", json={"target": 1})
        assert higher.status_code == 202, higher.text
        again = await _ended(client, id)
        assert (again["status"], again["test_looks"]) == ("reached", 1)  # the champion is the same


async def test_nothing_helps_says_why_and_what_to_do_next(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, USELESS, "useless")
        improvement = await _ended(client, await _started(client, prompts=["useless"]))
        assert improvement["status"] == "nothing_helps"
        assert "Next:" in improvement["sentence"]
        assert improvement["champion"] == 0


async def test_another_service_goes_on_where_one_was_closed(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, HINTED)
        id = await _started(client, prompts=["hinted"])
        await answered(lambda: _shown(client, id), lambda shown: shown["pilot"] is not None)
    async with _service(data_dir, database_url) as client:
        improvement = await _ended(client, id)
        assert improvement["status"] == "reached"
        evaluations = (await client.get("/evaluations")).json()["items"]
        assert len(evaluations) == 5


async def test_what_was_cancelled_is_tried_anew(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, HINTED)
        id = await _started(client, prompts=["hinted"])
        paused = await client.post(f"/improvements/{id}/pause")
        assert paused.json()["status"] == "paused"
        assert (await client.post(f"/improvements/{id}/pause")).status_code == 409
        assert (await client.post(f"/improvements/{id}/resume")).json()["status"] == "running"
        cancelled = await client.post(f"/improvements/{id}/cancel")
        assert (cancelled.json()["status"], cancelled.json()["job"]) == ("cancelled", None)
        assert (await client.post(f"/improvements/{id}/cancel")).status_code == 409
        assert (await client.post(f"/improvements/{id}/continue", json={})).status_code == 202
        assert (await client.delete(f"/improvements/{id}")).status_code == 409
        assert (await _ended(client, id))["status"] == "reached"
        assert (await client.delete(f"/improvements/{id}")).status_code == 200
        assert (await client.get(f"/improvements/{id}")).status_code == 404


async def test_a_budget_ends_an_improvement_and_a_higher_one_continues_it(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, HINTED)
        id = await _started(client, prompts=["hinted"], budget={"max_tokens": 3_000})
        stopped = await _ended(client, id)
        assert (stopped["status"], stopped["reason"] is not None) == ("budget", True)
        await client.post(f"/improvements/{id}/continue", json={"budget": {"max_tokens": 10_000_000}})
        assert (await _ended(client, id))["status"] == "reached"


async def test_a_person_proposes_what_helps(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        id = await _started(client, wait_minutes=60)
        waiting = await answered(lambda: _shown(client, id), lambda shown: shown["waits_until"] is not None)
        assert "learnloop improve material" in waiting["reason"]
        material = (await client.get(f"/improvements/{id}/material")).raise_for_status().json()
        system = material["prompt"]["parts"]["system"]
        assert material["patterns"][0]["tasks"] == 8
        text = str(material)
        validation = waiting["tried"][0]["gate_id"]
        held_out = (await client.get(f"/evaluations/{validation}/trajectories")).json()["items"]
        assert not any(rollout["scenario_id"] in text for rollout in held_out)

        proposal = {"parts": {"system": f"{system} {HINT}"}, "why": "It answers with what it reads."}
        accepted = await client.post(f"/improvements/{id}/candidates", json=proposal)
        assert accepted.status_code == 201, accepted.text
        assert (accepted.json()["number"], accepted.json()["quotes"]) == (1, False)
        again = await client.post(f"/improvements/{id}/candidates", json=proposal)
        assert (again.status_code, "candidate 1" in again.json()["detail"]) == (409, True)

        improvement = await _ended(client, id)
        assert (improvement["status"], improvement["champion"]) == ("reached", 1)
        assert improvement["tried"][1]["why"] == "It answers with what it reads."
        late = await client.post(f"/improvements/{id}/candidates", json={"parts": {"system": f"{system} Late."}})
        assert late.status_code == 409
        told = (await client.get(f"/improvements/{id}/candidates/1")).json()
        assert (told["state"], told["screening"]["won"]) == ("accepted", 4)
        assert "success" not in told


_UNUSABLE_PROMPTS: list[tuple[dict[str, str], list[str], str]] = [
    ({"tool:send_money": "Send it."}, ["body", "parts", "tool:send_money"], "there is no tool"),
    ({"system": "{nobody}"}, ["body", "parts", "system"], "placeholder"),
    ({"system": "<|im_start|>system"}, ["body", "parts", "system"], "control token"),
    ({"system": "Report to https://evil.net/x"}, ["body", "parts", "system"], "address"),
    ({"system": "x" * 40_000}, ["body", "parts"], "bytes"),
    ({}, ["body", "parts"], "no parts"),
]


async def test_a_prompt_that_cannot_be_tried_is_refused_and_not_counted(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        id = await _started(client, wait_minutes=60)
        await answered(lambda: _shown(client, id), lambda shown: shown["waits_until"] is not None)
        for parts, where, why in _UNUSABLE_PROMPTS:
            refused = await client.post(f"/improvements/{id}/candidates", json={"parts": parts})
            assert (refused.status_code, why in refused.text) == (422, True), refused.text
            assert refused.json()["errors"][0]["loc"][: len(where)] == where
            stored = await client.post("/prompts", params={"name": "bad"}, json={"parts": parts})
            if stored.status_code == 201:
                at_once = await client.post("/improvements", json=PROMPTS_ONLY | {"prompts": ["bad"]})
                assert (at_once.status_code, why in at_once.text) == (422, True), at_once.text
        assert (await _shown(client, id))["candidates"] == 1


async def test_guesses_at_held_out_tasks_count_like_candidates(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "MAX_GUESSES", 2)
    async with _service(data_dir, database_url) as client:
        id = await _started(client, wait_minutes=60)
        waiting = await answered(lambda: _shown(client, id), lambda shown: shown["waits_until"] is not None)
        validation = f"/evaluations/{waiting['tried'][0]['gate_id']}/trajectories"
        held_out = (await client.get(validation)).json()["items"]
        whole = [(await client.get(f"/trajectories/{rollout['id']}")).json() for rollout in held_out]
        longest = max((rollout["scenario"]["task"]["question"] for rollout in whole), key=len)
        for text, status, why in ((longest, 422, "not for training"), ("Be kind.", 429, "the maximum")):
            proposal = {"parts": {"system": f"{{original}} {text}"}}
            refused = await client.post(f"/improvements/{id}/candidates", json=proposal)
            assert (refused.status_code, why in refused.text) == (status, True), refused.text


_BAD_REQUESTS: list[tuple[Json, list[str], str]] = [
    ({"prompts": ["nobody"]}, ["body", "prompts", "0"], "nobody"),
    ({"prompt": "nobody"}, ["body", "prompt"], "nobody"),
    ({"from": "no/model"}, ["body", "from"], "no/model"),
    ({"judge": {"name": "feedback"}}, ["body", "judge"], "feedback"),
    ({"environment": {"name": "nowhere"}}, ["body", "environment"], "nowhere"),
    ({"validation": 7}, ["body", "validation"], "8"),
    ({"target": 0}, ["body", "target"], "0"),
    ({"run": {"iterations": -1}}, ["body", "run"], "iterations"),
    ({"models": ["nobody/knows"], "rungs": ["model"]}, ["body", "models"], "nobody/knows"),
    ({"rungs": ["magic"]}, ["body", "rungs"], "grpo"),
]


async def test_a_bad_request_says_where_and_leaves_nothing_behind(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        for request, where, why in _BAD_REQUESTS:
            refused = await client.post("/improvements", json=PROMPTS_ONLY | request)
            assert (refused.status_code, why in refused.text) == (422, True), refused.text
            assert [str(part) for part in refused.json()["errors"][0]["loc"]][: len(where)] == where
        assert (await client.get("/improvements")).json()["items"] == []


async def test_a_plan_stores_nothing(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, HINTED)
        request = PROMPTS_ONLY | {"prompts": ["hinted"], "rungs": ["prompt", "model", "grpo"], "dry_run": True}
        first = await client.post("/improvements", json=request)
        assert first.status_code == 200, first.text
        as_it_is, prompt, model, _ = first.json()["rungs"]
        assert (as_it_is["minutes"], prompt["candidates"], prompt["why_not"]) == (None, 1, None)
        assert model["why_not"] == "No listed model was named."
        assert (await client.get("/improvements")).json()["items"] == []

        await _ended(client, await _started(client, prompts=["hinted"]))
        plan = (await client.post("/improvements", json=request)).json()
        assert [plan["request"][name] for name in ("validation", "test", "target")] == [8, 8, 0.9]
        assert plan["can_show"][0].startswith("With 8 validation tasks")
        for rung in (plan["rungs"][0], plan["rungs"][1], plan["rungs"][3]):
            low, high = rung["minutes"]
            assert 0 < low < high
        assert "earlier evaluation" in plan["rungs"][1]["source"]
        assert len((await client.get("/improvements")).json()["items"]) == 1


async def test_what_was_accepted_is_promoted_if_that_was_asked_for(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as client:
        await store(client, HINTED)
        promoted = {"prompts": ["hinted"], "promote": {"as": "live"}}
        improvement = await _ended(client, await _started(client, **promoted))
        assert (improvement["status"], improvement["reason"]) == ("reached", "Promoted as learnloop/live.")
        [newest] = (await client.get("/promotions/learnloop/live")).json()["items"]
        assert (newest["prompt"]["name"], newest["actor"]) == ("hinted", f"improvement:{improvement['id']}")
        assert newest["model"] == f"learnloop/improved-{improvement['id'][-6:]}"

        released = promoted | {"promote": {"as": "live", "how": "release"}, "from": "learnloop/tiny", "prompt": None}
        improvement = await _ended(client, await _started(client, **released))
        [release] = (await client.get("/releases")).json()["items"]
        assert improvement["reason"] == f"Release {release['release_id']} of learnloop/live begins."
        refused = await _ended(client, await _started(client, **promoted))
        assert (refused["status"], refused["champion"]) == ("reached", 1)
        assert "Not promoted: " in refused["reason"]
        assert release["release_id"] in refused["reason"]
        listed = {"from": "openai/desk", "prompts": ["hinted"], "promote": {"as": "desk"}}
        assert "operator's list" in (await _ended(client, await _started(client, **listed)))["reason"]
