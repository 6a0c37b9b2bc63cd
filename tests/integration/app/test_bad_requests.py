"""Whatever is wrong with a request is told as a problem document, and nothing is saved of it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.environment.email_search.environment import questions_path
from learnloop_service.environment.email_search.inbox import Email, write_inbox


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
    ({"environment": {"name": "mcp"}}, ["body", "environment", "config"]),
    ({"environment": {"name": "mcp", "config": {"server": {"command": ["sh"]}}}}, ["body", "environment", "config"]),
    ({"judge": {"name": "oracle"}}, ["body", "judge", "name"]),
    ({"judge": {"config": {"a": 1}}}, ["body", "judge", "config"]),
    ({"judge": {"name": "grounding"}}, ["body", "judge"]),
    ({"judge": {"name": "reported"}}, ["body", "judge"]),
    ({"judge": [{"name": "grounding", "weight": 1}, {"name": "feedback", "weight": 1}]}, ["body", "judge"]),
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
    problem = _problem(await client.post("/learn-loop", content=b'{"iterations": 3,}', headers=json_type), 422)
    assert problem["detail"].startswith("body: not JSON from character 18 on: Expecting property name")
    _problem(await client.post("/learn-loop", content=b"\xff\xfe{}", headers=json_type), 422)
    _problem(await client.post("/learn-loop", content=b"[" * 10_000, headers=json_type), 400)
    _problem(await client.post("/learn-loop", content=b'{"temperature": NaN}', headers=json_type), 422)
    _problem(await client.post("/learn-loop", content=b'{"backend": "\\ud800"}', headers=json_type), 422)
    problem = _problem(await client.post("/learn-loop", data={"iterations": "3"}), 415)
    assert "application/json" in problem["detail"]
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


@pytest.mark.parametrize(
    ("path", "body", "loc", "msg"),
    [
        ("/learn-loop", {"iteratons": 3}, ["body", "iteratons"], "Unknown field. Did you mean iterations?"),
        ("/learn-loop", {"model": {"basemodel": "x"}}, ["body", "model", "basemodel"], "Did you mean base_model?"),
        ("/learn-loop", {"judge": {"nam": "x"}}, ["body", "judge", "nam"], "Did you mean name?"),
        ("/learn-loop", {"budget": {"zzz": 1}}, ["body", "budget", "zzz"], "Known: max_usd, max_minutes, max_tokens."),
        ("/learn-loop", {"two words": 1}, ["body", "two words"], "Unknown field. Known: name, graph, depth"),
        ("/models/a/b/promote", {"step": 1, "az": "x"}, ["body", "az"], "Known: prompt, step, as"),
        ("/feedback", {"type": "sent"}, ["body", "event_id"], "Field required"),
        ("/feedback", {"events": [{"type": "sent"}]}, ["body", "events", 0, "event_id"], "Field required"),
        ("/feedback", {"events": []}, ["body", "events"], "at least 1 item"),
    ],
)
async def test_a_field_is_named_as_it_was_sent(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], loc: list[str | int], msg: str
) -> None:
    problem = _problem(await client.post(path, json=body), 422)
    messages = {tuple(error["loc"]): error["msg"] for error in problem["errors"]}
    assert msg in messages[tuple(loc)], messages


async def test_many_unknown_fields_are_refused_without_comparing_each(client: httpx.AsyncClient) -> None:
    problem = _problem(await client.post("/ask", json={f"iteration{n}": 1 for n in range(30)}), 422)
    explained = [error for error in problem["errors"] if error["msg"].startswith("Unknown field")]
    assert len(explained) == 10


async def test_unknown_query_parameters_are_refused(client: httpx.AsyncClient) -> None:
    problem = _problem(await client.get("/runs?after=14&limt=3"), 422)
    assert [error["loc"] for error in problem["errors"]] == [["query", "after"], ["query", "limt"]]
    assert problem["errors"][0]["msg"] == (
        "Unknown parameter. Known: status, search, tag, starred, settings_hash, since, started_by, sort, "
        "ascending, fold, curve, settings, cursor, limit."
    )
    assert problem["errors"][1]["msg"] == "Unknown parameter. Did you mean limit?"
    assert "There are none here" in _problem(await client.get("/backends?all=1"), 422)["detail"]
    assert _problem(await client.get("/runs/01K/events?after=14"), 404)  # known there
    for path in ("/health/live?probe=1", "/health/ready?probe=1"):  # probes add what they like
        assert (await client.get(path)).status_code == 200


async def test_a_run_on_own_mail_needs_questions_for_each_split(client: httpx.AsyncClient, data_dir: Path) -> None:
    mail = Email("m1", "<1@x.example>", "Mara <mara@x.example>", ("jo@x.example",), None, "Venue", "It is Basel.")
    inbox = data_dir / "inboxes" / "mine.sqlite"
    write_inbox(inbox, [mail])
    question = {"question": "Where?", "answer": "Basel", "source_ids": ["m1"]}
    questions_path(inbox).write_text(json.dumps(question))
    body = {"environment": {"config": {"inbox": "mine"}}}
    problem = _problem(await client.post("/learn-loop", json=body), 422)
    assert problem["errors"][0]["loc"] == ["body", "environment", "config"]
    assert "needs questions for train, validation and test" in problem["detail"]
    questions_path(inbox).write_text(json.dumps({**question, "source_ids": ["<2@x.example>"]}))
    assert "no email of the inbox has" in _problem(await client.post("/learn-loop", json=body), 422)["detail"]
