"""A prompt alone is released, tried, promoted and taken back."""

import re
from collections.abc import Mapping
from pathlib import Path

import httpx

from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.hinted_prompts import HINT, HINTED, right_when_hinted, store
from tests.integration.app.released_models import PROMOTE, RELEASES, release_events, release_service

KIND = {"parts": {"system": "{original} Be kind."}}


async def _engine(request: Mapping[str, Json]) -> Reply:
    """Knows the checkpoints of `m`, which answer whoever has the hint."""
    if not request:
        return Reply(body={"data": [{"id": "learnloop/m", "steps": [0, 1, 2, 3]}]})
    return await right_when_hinted(request)


async def _in_state(client: httpx.AsyncClient, release_id: str, state: str) -> Json:
    async def ask() -> Json:
        return (await client.get(f"/releases/{release_id}")).raise_for_status().json()

    return await answered(ask, lambda release: release["state"] == state)


async def _current(client: httpx.AsyncClient) -> tuple[int, str | None]:
    [now, *_] = (await client.get("/promotions/learnloop/live")).raise_for_status().json()["items"]
    return now["step"], now["prompt"] and now["prompt"]["name"]


async def test_a_prompt_alone_is_tried_and_released(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_engine) as chat, release_service(data_dir, database_url, chat) as client:
        hinted = (await store(client, HINTED)).json()
        await store(client, KIND, "kind")
        started = (await client.post(RELEASES, json={"prompt": "hinted"})).json()
        assert (started["candidate"], started["stable"]) == ("learnloop/m@0", "learnloop/m@0")
        assert (started["candidate_prompt"]["name"], started["stable_prompt"]) == ("hinted", None)
        running = await _in_state(client, started["release_id"], "running")
        assert [arm["prompt"] and arm["prompt"]["name"] for arm in running["arms"]] == ["hinted", None]
        trial = (await client.get(f"/evaluations/{started['evaluation_id']}")).json()["report"]
        assert [model["prompt"] and model["prompt"]["name"] for model in trial["models"]] == [None, "hinted"]
        assert trial["trial"]["decision"] == "promote"
        used = await client.delete(f"/prompts/{hinted['sha256']}")
        assert used.json()["used_by"]["releases"] == [started["release_id"]]

        await client.post(f"/releases/{started['release_id']}/promote")
        assert await _current(client) == (0, "hinted")
        events = await release_events(client, started["release_id"])
        assert events[-1]["data"]["candidate_prompt"]["sha256"] == hinted["sha256"]

        worse = (await client.post(RELEASES, json={"prompt": "kind"})).json()
        assert (await _in_state(client, worse["release_id"], "rolled_back"))["reason"] == "trial"
        assert await _current(client) == (0, "hinted")


async def test_a_release_with_the_same_prompt_is_against_itself(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_engine) as chat, release_service(data_dir, database_url, chat) as client:
        stored = (await store(client, HINTED)).json()
        await store(client, HINTED, "another-name")
        await client.post(PROMOTE, json={"step": 0, "as": "live", "prompt": "hinted"})
        for request in ({"prompt": stored["sha256"]}, {"prompt": "another-name"}, {"step": 0}):
            itself = (await client.post(RELEASES, json=request)).json()
            assert itself["state"] == "running", request
            assert any("is the stable checkpoint itself" in warning for warning in itself["warnings"])
            await client.post(f"/releases/{itself['release_id']}/rollback")
        other = (await client.post(RELEASES, json={"prompt": None, "skip_trial": True})).json()
        assert not any("never evaluated" in warning for warning in other["warnings"]), "it was trained so"
        assert (other["state"], other["candidate_prompt"]) == ("running", None)
        await client.post(f"/releases/{other['release_id']}/rollback")
        assert await _current(client) == (0, "hinted")
        await store(client, KIND, "kind")
        untried = (await client.post(RELEASES, json={"prompt": "kind", "skip_trial": True})).json()
        assert any("learnloop/m@0 was never evaluated with the prompt kind@1" in text for text in untried["warnings"])
        await client.post(f"/releases/{untried['release_id']}/rollback")
        missing = await client.post(RELEASES, json={"prompt": "gone"})
        assert (missing.status_code, missing.json()["errors"][0]["loc"]) == (422, ["body", "prompt"])


async def test_a_trial_promotes_a_prompt_of_the_same_checkpoint(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(_engine) as chat, release_service(data_dir, database_url, chat) as client:
        await store(client, HINTED)
        better = {"step": 0, "if_better_than": "live", "prompt": "hinted"}
        accepted = await client.post(PROMOTE, json=better)
        assert accepted.status_code == 202, accepted.text
        evaluation = await ended(client, accepted.json()["evaluation_id"])
        assert evaluation["report"]["trial"]["decision"] == "promote"
        assert await _current(client) == (0, "hinted")
        again = await client.post(PROMOTE, json=better)
        assert (again.status_code, "is learnloop/m@0 already" in again.json()["detail"]) == (409, True)
        # It was compared, so promoting it at once needs no warning.
        promoted = (await client.post(PROMOTE, json={"step": 0, "as": "other", "prompt": "hinted"})).json()
        assert promoted["warnings"] == []

        evaluated = await client.post("/evaluations", json={"models": [{"model": "learnloop/live"}], "scenarios": 1})
        report = (await ended(client, evaluated.json()["evaluation_id"]))["report"]
        assert report["models"][0]["prompt"]["name"] == "hinted"
        systems = [request["messages"][0]["content"] for request in chat.requests if "messages" in request]
        assert re.search(HINT, systems[-1])
