"""Whatever is wrong with a request is told as a problem document, and nothing is saved of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for


@pytest.fixture
async def client(data_dir: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        yield client


def _problem(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return body


BAD_LEARN_LOOPS: list[tuple[dict[str, Any], list[str]]] = [
    ({"iterations": 0}, ["body", "iterations"]),
    ({"iterations": 10_001}, ["body", "iterations"]),
    ({"iterations": "many"}, ["body", "iterations"]),
    ({"rollouts_per_group": 1}, ["body", "rollouts_per_group"]),
    ({"learning_rate": -1}, ["body", "learning_rate"]),
    ({"webhook": []}, ["body", "webhook"]),
    ({"status": "completed"}, ["body", "status"]),
    ({"environment": {"name": "chess"}}, ["body", "environment", "name"]),
    ({"environment": {"config": {"inbox": "../../etc/passwd"}}}, ["body", "environment", "config"]),
    ({"environment": {"config": {"inbox": "nobody"}}}, ["body", "environment", "config"]),
    ({"environment": {"config": {"depth": 3}}}, ["body", "environment", "config"]),
    ({"judge": {"name": "oracle"}}, ["body", "judge", "name"]),
    ({"judge": {"config": {"a": 1}}}, ["body", "judge", "config"]),
    ({"model": {"name": "../up"}}, ["body", "model", "name"]),
    ({"model": {"base_model": "gpt-5"}}, ["body", "model", "base_model"]),
    ({"backend": "cloud"}, ["body", "backend"]),
    ({"environment": {"config": {"inbox": "a\x00b"}}}, ["body"]),
]


@pytest.mark.parametrize(("body", "loc"), BAD_LEARN_LOOPS, ids=lambda value: str(value)[:60])
async def test_a_bad_learn_loop_is_refused_with_its_field(
    client: httpx.AsyncClient, body: dict[str, Any], loc: list[str]
) -> None:
    problem = _problem(await client.post("/learn-loop", json=body), 422)
    assert [error["loc"] for error in problem["errors"]] == [loc]
    assert problem["errors"][0]["msg"]
    assert (await client.get("/runs")).json()["items"] == []


async def test_what_is_not_json(client: httpx.AsyncClient) -> None:
    json_type = {"content-type": "application/json"}
    _problem(await client.post("/learn-loop", content=b"{", headers=json_type), 422)
    _problem(await client.post("/learn-loop", content=b"\xff\xfe{}", headers=json_type), 422)
    _problem(await client.post("/learn-loop", content=b"[" * 10_000, headers=json_type), 400)
    _problem(await client.post("/learn-loop", content=b'{"temperature": NaN}', headers=json_type), 422)
    _problem(await client.post("/learn-loop", content=b'{"backend": "\\ud800"}', headers=json_type), 422)
    told = _problem(await client.post("/learn-loop", data={"iterations": "3"}), 415)
    assert "application/json" in told["detail"]
    _problem(await client.post("/learn-loop", json=[]), 422)


async def test_a_body_too_large_announced_or_not(client: httpx.AsyncClient) -> None:
    huge = b'{"question": "' + b"x" * 1_000_000 + b'"}'
    _problem(await client.post("/ask", content=huge), 413)

    async def in_chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(huge), 65_536):
            yield huge[start : start + 65_536]

    _problem(await client.post("/ask", content=in_chunks()), 413)


async def test_paths_and_methods_that_are_not_there(client: httpx.AsyncClient) -> None:
    _problem(await client.get("/nothing"), 404)
    assert _problem(await client.delete("/runs"), 405)["detail"] == "DELETE is not allowed for /runs."
    for path in ("/runs/01K", "/runs/01K/iterations", "/runs/01K/checkpoints", "/runs/01K/trajectories"):
        assert _problem(await client.get(path), 404)["detail"] == "There is no run '01K'."
    _problem(await client.post("/runs/01K/cancel"), 404)
    _problem(await client.get("/trajectories/01K"), 404)
    _problem(await client.get("/runs/a%00b"), 422)
    _problem(await client.get("/trajectories/a%00b"), 422)


async def test_bad_query_parameters(client: httpx.AsyncClient) -> None:
    for query in ("limit=0", "limit=1000000000", "status=asleep", "cursor=nonsense", "cursor=%00"):
        _problem(await client.get(f"/runs?{query}"), 422)
    for query in ("split=other", "iteration=-1", "iteration=99999999999", "cursor=1e9", "scenario_id=a%00b"):
        _problem(await client.get(f"/runs/01K/trajectories?{query}"), 422)


async def test_bad_questions(client: httpx.AsyncClient) -> None:
    for body in ({}, {"question": "why?"}, {"question": "why?", "run_id": "a", "model": "b"}, {"question": ""}):
        _problem(await client.post("/ask", json=body), 422)
    _problem(await client.post("/ask", json={"question": "why?", "run_id": "01K"}), 404)
    _problem(await client.post("/invoke", json={"parameters": {}}), 422)
    _problem(await client.post("/invoke", json={"question": "why?"}), 422)
