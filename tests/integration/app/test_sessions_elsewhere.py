"""Sessions with models of other backends: what is promised there, and what servers that misbehave do to it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.app.db.tables import Run
from learnloop_service.training.rollout.histories import conversations
from tests.fakes.scripted_chat import Reply, ScriptedChat, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.fakes.stored_request import stored_run
from tests.integration.app.keyed import Keyed, bearer, keyed

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@dataclass
class Elsewhere:
    """A service with a model `mail/agent` that was trained on another backend, whose replies a test decides."""

    service: Keyed
    server: ScriptedChat
    backend: "CountingBackend"
    replies: list[Reply] = field(default_factory=list)
    run_id: str = ""

    async def opened(self, model: str = "mail/agent") -> Any:
        key = await self.service.headers()
        reply = await self.service.client.post("/sessions", json={"model": model}, headers=key)
        return reply.raise_for_status().json() | {"owner": key} if reply.is_success else reply

    async def ask(self, session: Any, messages: Any = MESSAGES, **more: Any) -> Any:
        path = f"/sessions/{session['id']}/v1/chat/completions"
        body = {"model": "any", "messages": messages} | more
        return await self.service.client.post(path, json=body, headers=bearer(session["api_key"]))


class CountingBackend(ScriptedBackend):
    """Counts how often it was asked for a model."""

    asked = 0

    async def register(self, model: Any) -> Any:
        self.asked += 1
        return await super().register(model)


@pytest.fixture
async def stage(data_dir: Path, database_url: str) -> AsyncIterator[Elsewhere]:
    replies: list[Reply] = []

    async def script(_: Mapping[str, Any]) -> Reply:
        return replies.pop(0)

    async with scripted_chat(script) as server:
        backend = CountingBackend(server.url)
        async with keyed(data_dir, database_url, backend=backend, rate_per_s=0) as service:
            elsewhere = Elsewhere(service, server, backend, replies)
            elsewhere.run_id = await _run(service, step=3)
            yield elsewhere


async def _run(service: Keyed, step: int | None, name: str = "agent") -> str:
    model = {"model_project": "mail", "model_name": name, "base_model": "a-base"}
    run = stored_run(status="completed", backend="serverless", step=step, **model)
    async with service.database.begin() as tx:
        tx.add(run)
    return run.id


async def test_a_session_keeps_its_checkpoint_and_replays_its_calls(stage: Elsewhere) -> None:
    session = await stage.opened()
    stage.replies += [Reply(content="hi", tokens=(5, 6)), Reply(content="well")]
    first = (await stage.ask(session)).raise_for_status().json()
    assert first["model"] == "mail/agent@3"
    async with stage.service.database.begin() as session_:
        (await session_.get_one(Run, stage.run_id)).step = 4  # it was trained on
    reply = first["choices"][0]["message"]
    longer = [*MESSAGES, reply, {"role": "user", "content": "and?"}]
    assert (await stage.ask(session, longer)).json()["model"] == "mail/agent@3"
    assert stage.backend.asked == 1  # not for each call
    [first_request, later] = stage.server.requests
    assert all("token_ids" not in message for message in later["messages"])  # it might refuse what it does not know
    assert "return_token_ids" not in first_request
    again = await stage.ask(session)  # the very first request: the agent was started again
    assert (again.json(), again.headers["idempotency-replayed"]) == (first, "true")
    assert len(stage.server.requests) == 2
    await stage.ask(session, longer)
    [conversation] = conversations(await SessionCalls(stage.service.database).of_last_attempt(session["id"]))
    assert len(conversation.messages_and_choices) == 4  # joined by whole messages


async def test_a_run_without_a_checkpoint_opens_no_session(stage: Elsewhere) -> None:
    await _run(stage.service, None, "fresh")
    refused = await stage.opened("mail/fresh")
    assert (refused.status_code, "no checkpoint yet" in refused.text) == (409, True)


async def test_a_model_whose_run_was_deleted_is_not_looked_for_on_the_engine(stage: Elsewhere) -> None:
    session = await stage.opened()
    async with stage.service.database.begin() as session_:
        await session_.execute(delete(Run).where(Run.id == stage.run_id))
    refused = await stage.ask(session)
    assert refused.status_code == 404
    assert "The run that trained mail/agent was deleted" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"choices": ["a"]},
        {"choices": [{"index": 0, "message": "hi"}]},
        {"choices": 3},
        {"choices": []},
        [],
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}], "usage": "much"},
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "\ud800"}}]},
        {
            "choices": [
                {"index": 0, "message": {"role": "assistant"}, "logprobs": {"content": [{"logprob": float("nan")}]}}
            ]
        },
    ],
)
async def test_a_reply_that_is_none_is_a_bad_gateway_and_not_recorded(stage: Elsewhere, body: Any) -> None:
    session = await stage.opened()
    stage.replies.append(Reply(body=body))
    assert (await stage.ask(session)).status_code == 502
    stage.replies.append(Reply(content="hi"))
    assert (await stage.ask(session)).json()["choices"][0]["message"]["content"] == "hi"
    session_info = await stage.service.client.get(f"/sessions/{session['id']}", headers=session["owner"])
    assert session_info.json()["calls"] == 1


async def test_what_the_server_says_of_tokens_is_kept_as_far_as_it_makes_sense(stage: Elsewhere) -> None:
    session = await stage.opened()
    message = {"role": "assistant", "content": "hi"}
    odd = {"id": "a", "model": ["x"], "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    stage.replies.append(Reply(body=odd | {"usage": {"prompt_tokens": "many", "completion_tokens": 10**12}}))
    assert (await stage.ask(session)).status_code == 200
    session_info = await stage.service.client.get(f"/sessions/{session['id']}", headers=session["owner"])
    assert (session_info.json()["prompt_tokens"], session_info.json()["completion_tokens"]) == (0, 0)


async def test_a_refusal_is_the_servers_and_a_server_that_is_away_is_asked_again(
    stage: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.gateway.gateway._PAUSE_S", 0.01)
    session = await stage.opened()
    stage.replies.append(Reply(status=400))
    assert (await stage.ask(session)).status_code == 400
    stage.replies += [Reply(status=503), Reply(content="hi")]
    reply = await asyncio.wait_for(stage.ask(session), 30)
    assert reply.json()["choices"][0]["message"]["content"] == "hi"
    assert len({request["seed"] for request in stage.server.requests}) == 1  # all of them were the same call


async def test_the_server_is_given_the_hints_that_it_can_honour(stage: Elsewhere) -> None:
    session = await stage.opened()
    stage.replies.append(Reply(content="hi"))
    hints = {"reasoning_effort": "high", "prompt_cache_key": "a"}
    (await stage.ask(session, **hints)).raise_for_status()
    [request] = stage.server.requests
    assert (request["reasoning_effort"], "prompt_cache_key" in request) == ("high", False)
    session_info = await stage.service.client.get(f"/sessions/{session['id']}", headers=session["owner"])
    assert session_info.json()["warnings"] == ["The hint prompt_cache_key was accepted and has no effect."]
