"""An agent with only its base URL and key changed: its calls are recorded, streamed, replayed and trained."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.training.rollout.histories import conversations
from tests.conditions import answered
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.agent_clients import agent, ask, opened, recorded, two_turns
from tests.integration.app.keyed import OPERATOR_KEY, bearer
from tests.integration.app.model_stage import CALLER, ModelStage, model_stage
from tests.integration.app.sign_ins import OWN_PAGE, sign_in
from tests.openai_clients import MESSAGES

TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


@pytest.fixture(autouse=True)
def _same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions draw their seeds: what the model says here must not depend on the day."""
    monkeypatch.setattr("learnloop_service.app.agent_sessions.store._SEED_BITS", 0)


async def test_the_calls_of_an_agent_become_one_training_sequence(stage: ModelStage) -> None:
    session = await opened(stage)
    async with agent(session) as client:
        first = await ask(client, tools=[TOOL])
        second = await ask(client, two_turns(first), tools=[TOOL])
    assert first.model == second.model == f"{CALLER}@1"
    assert first.choices[0].logprobs is None  # not asked for
    assert "prompt_token_ids" not in (first.model_extra or {})
    calls = await recorded(stage, session)
    assert [call["number"] for call in calls] == [1, 2]
    before, after = (call["completion"] for call in calls)
    sampled = [int(token["token"].partition(":")[2]) for token in before["choices"][0]["logprobs"]["content"]]
    assert after["prompt_token_ids"][: len(before["prompt_token_ids"]) + len(sampled)] == [
        *before["prompt_token_ids"],
        *sampled,
    ]
    answered = await SessionCalls(stage.service.database).of_last_attempt(session["id"])
    [conversation] = conversations(answered)
    assert len([item for item in conversation.messages_and_choices if not isinstance(item, dict)]) == 2


async def test_an_agent_may_change_only_its_key(stage: ModelStage) -> None:
    session = await opened(stage)
    async with openai.AsyncOpenAI(base_url=stage.base_url, api_key=session["api_key"]) as client:
        await ask(client)
    assert len(await recorded(stage, session)) == 1


async def test_a_stream_is_recorded_before_its_end_and_replayed(stage: ModelStage) -> None:
    session = await opened(stage, restart="explicit")

    async def streamed(client: openai.AsyncOpenAI) -> list[Any]:
        return [chunk async for chunk in await ask(client, stream=True, stream_options={"include_usage": True})]

    async with agent(session) as client:
        live = await streamed(client)
        [call] = await recorded(stage, session)
    message = call["completion"]["choices"][0]["message"]
    texts = [chunk.choices[0].delta.content or "" for chunk in live if chunk.choices]
    assert len(live) > 3
    assert "".join(texts) == message["content"]
    assert live[-1].usage.completion_tokens == call["completion"]["usage"]["completion_tokens"] == 8
    restarted = (
        (await stage.service.client.post(f"/sessions/{session['id']}/restart", headers=session["owner"]))
        .raise_for_status()
        .json()
    )
    assert restarted["attempt"] == 2
    async with agent(session | restarted) as client:
        again = await streamed(client)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in again if chunk.choices) == message["content"]
        whole = await ask(client)  # the second time in this attempt: another sample
        assert whole.id != live[0].id == again[0].id
    async with agent(session) as zombie:
        with pytest.raises(openai.PermissionDeniedError, match="earlier start") as refused:
            await ask(zombie)
        assert refused.value.code == "session_restarted"


async def test_several_choices_are_one_call(stage: ModelStage) -> None:
    session = await opened(stage)
    async with agent(session) as client:
        assert len((await ask(client, n=3, logprobs=True)).choices) == 3
    answered = await SessionCalls(stage.service.database).of_last_attempt(session["id"])
    assert len(conversations(answered)) == 3


async def test_the_outcome(stage: ModelStage) -> None:
    session, http = await opened(stage), stage.service.client
    path, agent_headers = f"/sessions/{session['id']}", bearer(session["api_key"])
    async with agent(session) as client:
        await ask(client)
        for wrong in (
            *('{"reward": NaN}', '{"reward": 1e999}', "{}", '{"output": {"a": Infinity}}', '{"parts": {}}'),
            *('{"reward": 1e200}', '{"parts": {"a": 1e308, "b": 1e308}}', '{"parts": {"a": 9e8, "b": 9e8}}'),
        ):
            headers = agent_headers | {"content-type": "application/json"}
            reply = await http.post(f"{path}/outcome", content=wrong, headers=headers)
            assert reply.status_code == 422
            assert "Value error" not in reply.text  # what a library calls it
        for headers in (
            agent_headers,
            session["owner"],
            agent_headers | {"idempotency-key": "a"},
            agent_headers | {"idempotency-key": "a"},
        ):
            reply = await http.post(f"{path}/outcome", json={"reward": 0.5}, headers=headers)
            assert (reply.status_code, reply.json()["status"], reply.json()["reward"]) == (200, "ended", 0.5)
        assert (await http.post(f"{path}/outcome", json={"reward": 0.6}, headers=agent_headers)).status_code == 409
        with pytest.raises(openai.PermissionDeniedError, match="has ended") as over:
            await ask(client)
        assert over.value.code == "session_over"
    session_info = (await http.get(path, headers=agent_headers)).raise_for_status().json()
    assert (session_info["calls"], session_info["checkpoint"], session_info["step"]) == (1, f"{CALLER}@1", 1)
    assert (await http.post(f"{path}/restart", headers=session["owner"])).status_code == 409


async def test_the_outcome_of_an_earlier_attempt_is_refused(stage: ModelStage) -> None:
    session, http = await opened(stage), stage.service.client
    path, owner = f"/sessions/{session['id']}/outcome", session["owner"]
    again = await http.post(f"/sessions/{session['id']}/restart", headers=owner)
    newest = bearer(again.raise_for_status().json()["api_key"])
    for headers, attempt in ((owner, {"attempt": 1}), (bearer(session["api_key"]), {}), (newest, {"attempt": 1})):
        refused = await http.post(path, json={"reason": "lost"} | attempt, headers=headers)
        assert (refused.status_code, refused.json()["title"]) == (409, "The claim is lost")
    session_info = await http.get(f"/sessions/{session['id']}", headers=owner)
    assert (session_info.json()["status"], session_info.json()["attempt"]) == ("open", 2)
    ended = await http.post(path, json={"reward": 1.0, "attempt": 2}, headers=owner)
    assert (ended.status_code, ended.json()["reward"]) == (200, 1.0)


async def test_no_outcome_is_not_zero(stage: ModelStage) -> None:
    session, http = await opened(stage), stage.service.client
    reply = await http.post(
        f"/sessions/{session['id']}/outcome",
        json={"reward": None, "reason": "the site was down"},
        headers=session["owner"],
    )
    nothing = dict.fromkeys(("reward", "parts", "output", "facts"))
    assert reply.json()["outcome"] == {**nothing, "reason": "the site was down"}
    assert reply.json()["reward"] is None


async def test_facts_keep_the_order_in_which_an_agent_reports_them(stage: ModelStage) -> None:
    session, http = await opened(stage), stage.service.client
    path, facts = f"/sessions/{session['id']}/outcome", {"looked_up": True, "a": False, "verified": False}
    for _ in range(2):  # the same outcome again changes nothing
        reply = await http.post(path, json={"reward": 0, "facts": facts}, headers=session["owner"])
        assert reply.status_code == 200, reply.text
        assert [*reply.json()["outcome"]["facts"].items()] == [*facts.items()]
    other = await http.post(path, json={"reward": 0, "facts": {**facts, "a": True}}, headers=session["owner"])
    assert other.status_code == 409


async def test_an_agent_reaches_its_own_session_only(stage: ModelStage) -> None:
    session, other, http = await opened(stage), await opened(stage), stage.service.client
    agent_headers = bearer(session["api_key"])
    for method, path in (
        ("GET", "/runs"),
        ("GET", "/sessions"),
        ("GET", f"/sessions/{other['id']}"),
        ("POST", f"/sessions/{other['id']}/v1/chat/completions"),
        ("POST", f"/sessions/{session['id']}/restart"),
        ("POST", "/sessions"),
        ("GET", "/models"),
        ("GET", f"/sessions/{other['id']}/v1/models"),
    ):
        assert (await http.request(method, path, headers=agent_headers)).status_code == 403, path
    stranger = bearer(await stage.key("sales"))
    for method, path in (
        ("GET", ""),
        ("GET", "/calls"),
        ("POST", "/restart"),
        ("POST", "/outcome"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", f"/v1/models/{CALLER}"),
    ):
        reply = await http.request(method, f"/sessions/{session['id']}{path}", headers=stranger, json={"reward": 1})
        assert reply.status_code == 404, path
    unknown = await http.post("/v1/chat/completions", json={}, headers=bearer("las_" + "x" * 43))
    assert unknown.status_code == 401
    assert (await http.get("/sessions", headers=stranger)).json()["items"] == []


async def test_sessions_end_with_the_key_that_opened_them(stage: ModelStage) -> None:
    http, new = stage.service.client, await stage.service.new()
    browser = await sign_in(stage.service, new.key)
    others = await opened(stage)
    of_key = [
        (await http.post("/sessions", json={"model": CALLER}, headers=headers)).raise_for_status().json()
        for headers in (bearer(new.key), browser | OWN_PAGE)
    ]
    for session in (*of_key, others):
        async with agent(session) as client:
            await ask(client)
    assert (await http.delete(f"/keys/{new.row.id}", headers=bearer(OPERATOR_KEY))).status_code == 200
    for session in of_key:
        path, key = f"/sessions/{session['id']}", bearer(session["api_key"])
        async with agent(session) as client:
            with pytest.raises((openai.PermissionDeniedError, openai.AuthenticationError)):
                await ask(client, [{"role": "user", "content": "Still there?"}])
        # What else its key reaches ends as soon as this process looks the API key up again.
        await answered(partial(http.get, path, headers=key), lambda reply: reply.status_code == 401)
        assert (await http.get(path, headers=others["owner"])).json()["status"] == "expired"
    async with agent(others) as client:
        await ask(client, [{"role": "user", "content": "Still there?"}])


async def test_an_agent_that_looks_for_its_model_finds_it(stage: ModelStage) -> None:
    session = await opened(stage, model=f"{CALLER}@0")
    base_url = str(stage.service.client.base_url).rstrip("/")
    for url in (session["base_url"], f"{base_url}/v1"):
        async with openai.AsyncOpenAI(base_url=url, api_key=session["api_key"], max_retries=0) as client:
            [model] = (await client.models.list()).data
            assert (model.id, model.owned_by) == (f"{CALLER}@0", "mail")
            assert await client.models.retrieve(model.id) == model
            assert (await client.models.retrieve("gpt-4o")).id == "gpt-4o"  # any name is answered by it
    reply = await stage.service.client.get(f"/sessions/{session['id']}/v1/models", headers=session["owner"])
    assert [listed_model["id"] for listed_model in reply.json()["data"]] == [f"{CALLER}@0"]


async def test_the_checkpoint_stays(stage: ModelStage) -> None:
    for name, checkpoint in ((f"{CALLER}@0", f"{CALLER}@0"), ("tiny", "tiny"), (CALLER, f"{CALLER}@1")):
        session = await opened(stage, model=name)
        async with agent(session) as client:
            assert (await ask(client)).model == checkpoint
    key = bearer(await stage.key())
    for name in (f"{CALLER}@9", "mail/none", "sales/x"):
        assert (await stage.service.client.post("/sessions", json={"model": name}, headers=key)).status_code == 404


async def test_a_client_that_leaves_ends_the_sampling_and_gets_the_same_later(stage: ModelStage) -> None:
    session = await opened(stage)
    async with agent(session) as client:
        stream = await ask(client, max_tokens=2000, stream=True)
        await anext(aiter(stream))
        await stream.close()
        assert await recorded(stage, session)  # begun
        whole = await asyncio.wait_for(ask(client, max_tokens=2000), 60)
    [call] = await recorded(stage, session)
    assert call["completion"]["id"] == whole.id
    assert call["occurrence"] == 0


async def test_bad_requests_and_limits(stage: ModelStage) -> None:
    session = await opened(stage, limits={"max_calls": 1})
    async with agent(session) as client:
        with pytest.raises(openai.BadRequestError, match="messages"):
            await ask(client, [])
        await ask(client)
        with pytest.raises(openai.BadRequestError, match="limit of calls is reached") as refused:
            await ask(client, [*MESSAGES, *MESSAGES])
        assert refused.value.code == "session_limit_reached"
    session = await opened(stage)
    async with agent(session) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="best_of"):
                await ask(client, stream=stream, extra_body={"best_of": 3})
        for seed in (2**63, -(2**63) - 1, 2**70, 1.5, "one", True):
            with pytest.raises(openai.BadRequestError, match="seed must be a whole number"):
                await ask(client, extra_body={"seed": seed})
        await ask(client, seed=-(2**63))


async def test_retries_get_the_answer(stage: ModelStage) -> None:
    session, http = await opened(stage), stage.service.client
    path = f"/sessions/{session['id']}/v1/chat/completions"

    async def ids(**headers: str) -> tuple[str, bool]:
        body = {"messages": MESSAGES, "max_tokens": 2}
        reply = await http.post(path, json=body, headers=bearer(session["api_key"]) | headers)
        return reply.raise_for_status().json()["id"], "idempotency-replayed" in reply.headers

    first, _ = await ids(**{"idempotency-key": "a"})
    assert await ids(**{"idempotency-key": "a"}) == (first, True)
    second, _ = await ids(**{"idempotency-key": "b"})
    assert second != first
    third, _ = await ids()
    assert await ids(**{"x-stainless-retry-count": "1"}) == (third, True)


async def test_nothing_but_json_is_read(stage: ModelStage) -> None:
    session = await opened(stage)
    headers = bearer(session["api_key"]) | {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=session["base_url"], headers=headers) as http:
        for body in (b"{", b"[]", json.dumps({"messages": [{"role": "user", "content": "\x00"}]}).encode()):
            reply = await http.post("/chat/completions", content=body)
            assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_responses_are_recorded_and_replayed(stage: ModelStage) -> None:
    session = await opened(stage)
    function: Any = TOOL["function"]
    tool = {"type": "function", **function, "strict": None}
    more: Any = {"model": "gpt-5", "instructions": "Answer.", "tools": [tool], "max_output_tokens": 64}
    items: Any = [{"role": "user", "content": "When is the kickoff?"}]
    async with agent(session) as client:
        first = await client.responses.create(input=items, **more, tool_choice={"type": "function", "name": "look_up"})
        [call] = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "Tuesday"}
        items += [call.model_dump(exclude_none=True), result]
        stream = await client.responses.create(input=items, **more, stream=True)
        events = [event async for event in stream]
        assert [events[0].type, events[-1].type] in (
            ["response.created", "response.completed"],
            ["response.created", "response.incomplete"],
        )
        with pytest.raises(openai.BadRequestError, match="send the items"):
            await client.responses.create(input="?", **more, previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.create(input="?", **more, background=True)
    calls = await recorded(stage, session)
    assert [call["protocol"] for call in calls] == ["responses", "responses"]
    assert [message["role"] for message in calls[1]["messages"]] == ["system", "user", "assistant", "tool"]
    [conversation] = conversations(await SessionCalls(stage.service.database).of_last_attempt(session["id"]))
    assert len([item for item in conversation.messages_and_choices if not isinstance(item, dict)]) == 2
    async with openai.AsyncOpenAI(base_url=stage.base_url, api_key=session["api_key"]) as client:  # started again
        again = await client.responses.create(
            input=items[:1], **more, tool_choice={"type": "function", "name": "look_up"}
        )
    assert again.id == first.id
    assert len(await recorded(stage, session)) == 2


async def test_behind_a_proxy_agents_get_the_public_address(
    model_engine: EngineProcess, data_dir: Path, database_url: str
) -> None:
    public = "https://learn.example/learnloop/"
    async with model_stage(model_engine, data_dir, database_url, public_url=public) as stage:
        await stage.run_of()
        session = await opened(stage)
        again = await stage.service.client.post(f"/sessions/{session['id']}/restart", headers=session["owner"])
        base_url = f"https://learn.example/learnloop/sessions/{session['id']}/v1"
        assert (session["base_url"], again.json()["base_url"]) == (base_url, base_url)
