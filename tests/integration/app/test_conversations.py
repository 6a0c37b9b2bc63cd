"""Conversations that exist already, imported by HTTP: what they become, who can use it, and how it is deleted."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.imitating_runs import NOT_EVALUATED, ImitatingBackend
from tests.integration.app.served import served, settings_for

CHATS = {"name": "chats", "kind": "conversations"}
HELLO = {"role": "assistant", "content": "hello"}


def conversations(count: int) -> bytes:
    """Ten per user; every third is disliked."""
    lines = [
        {
            "messages": [{"role": "user", "content": f"question {number}"}, HELLO],
            "feedback": "👎" if number % 3 == 0 else "👍",
            "user": f"customer {number // 10}",
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.fixture
async def service(tmp_path: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with served(settings_for(tmp_path, database_url), ScriptedLoop(), ImitatingBackend()) as client:
        yield client


async def imported(client: httpx.AsyncClient, content: bytes, **parameters: Any) -> Any:
    reply = await client.post("/imports", params=CHATS | parameters, content=content)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def test_liked_ones_become_demonstrations_and_disliked_ones_tasks(service: httpx.AsyncClient) -> None:
    report = await imported(service, conversations(300))
    assert (report["kind"], report["lines"], report["questions"]) == ("conversations", 300, None)
    assert report["conversations"] == {
        "conversations": 300, "forms": {"openai": 300}, "users": 30, "without_user": 0, "liked": 200, "disliked": 100,
        "unrated": 0,
    }  # fmt: skip
    tasks, learned = report["tasks"], report["demonstrations"]
    assert tasks["train"] + tasks["validation"] + tasks["test"] == tasks["count"] == 100
    assert tasks["judge"] == "ruler"
    assert learned["count"] + sum(omission["count"] for omission in report["left_out"]) == 200
    rows = (await service.get(f"/scenarios/{tasks['sha256']}")).json()["scenarios"]
    assert rows[0]["reference"] == {"disliked": "hello"}
    [listed] = (await service.get("/demonstrations")).json()["items"]
    assert (listed["name"], listed["count"], listed["origin"]["liked"]) == ("chats", learned["count"], 200)
    again = await imported(service, conversations(300))
    assert (again["tasks"], again["demonstrations"]) == (tasks, learned)


async def test_a_run_learns_from_both(service: httpx.AsyncClient) -> None:
    await imported(service, conversations(300))
    start = {"demonstrations": {"dataset": "chats"}, "epochs": 1}
    supervised = {"warm_start": start, "iterations": 0, "evaluation": NOT_EVALUATED}
    assert (await service.post("/learn-loop", json=supervised)).status_code == 202
    config = {"scenarios": "chats", "runner": {"pull": {}}}
    agent = {"environment": {"name": "agent", "config": config}, "judge": {"name": "reported"}}
    reply = await service.post("/learn-loop", json=agent | {"iterations": 1})
    assert reply.status_code == 202, reply.text


async def test_a_deleted_user_is_in_neither(service: httpx.AsyncClient) -> None:
    report = await imported(service, conversations(300))
    rows = (await service.get(f"/scenarios/{report['tasks']['sha256']}")).json()["scenarios"]
    trained = next(row for row in rows if row["split"] == "train")["task"]["messages"][0]["content"]
    number = int(trained.split()[1]) // 10
    deleted = (await service.post("/users/delete", json={"user": f"customer {number}"})).json()["deleted"]
    numbers = range(number * 10, number * 10 + 10)
    assert deleted["scenarios"] == sum(question_number % 3 == 0 for question_number in numbers)
    assert deleted["demonstrations"] == sum(question_number % 3 != 0 for question_number in numbers)
    for kind in ("scenarios", "demonstrations"):
        stored = report["tasks" if kind == "scenarios" else kind]
        remaining = (await service.get(f"/{kind}/{stored['sha256']}")).json()[kind]
        assert len(remaining) == stored["count"] - deleted[kind]
        assert not {f'"question {question_number}"' for question_number in numbers} & set(
            json.dumps(remaining).replace("}", " ").split(": ")
        )
        [listed] = (await service.get(f"/{kind}", params={"name": "chats"})).json()["items"]
        assert listed["count"] == len(remaining)


async def test_demonstrations_of_one_user_alone_are_deleted_whole(service: httpx.AsyncClient) -> None:
    for number in range(40):
        talk = [{"role": "user", "content": "hi"}, HELLO]
        line = {"messages": talk, "feedback": True, "user": f"only {number}"}
        report = await imported(service, json.dumps(line).encode())
        if report["demonstrations"] is not None:
            break
    assert (await service.post("/users/delete", json={"user": f"only {number}"})).json()["deleted"] == {
        **dict.fromkeys(("release_units", "release_observations", "feedback", "asks", "sessions"), 0),
        "demonstrations": 1,
    }
    assert (await service.get("/demonstrations")).json()["items"] == []
    again = await imported(service, json.dumps(line).encode())
    assert again["demonstrations"]["count"] == 1


@pytest.mark.parametrize(
    ("content", "parameters", "place", "why"),
    [
        (b"", {}, ["body"], "the file is empty"),
        (b"\x1f\x8bxx", {}, ["body"], "the file is compressed"),
        (b'{"messages": 3}', {}, ["body"], "it has none of: messages"),
        (b'{"input": "a", "output": "b", "rating": 4}', {}, ["query", "threshold"], "numbers from 4 to 4"),
    ],
)
async def test_what_cannot_be_taken_is_refused(
    service: httpx.AsyncClient, content: bytes, parameters: dict[str, Any], place: list[str], why: str
) -> None:
    reply = await service.post("/imports", params=CHATS | parameters, content=content)
    assert reply.status_code == 422
    [error] = reply.json()["errors"]
    assert error["loc"] == place
    assert why in error["msg"]
    assert (await service.get("/demonstrations")).json()["items"] == []
