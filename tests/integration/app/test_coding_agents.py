"""The first requests of Codex 0.171.0 and Claude Code 2.1.197, as these sent them, but with fewer tools and less text.

`python -m benchmarks.agents.coding_agents` runs the programs themselves.
"""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.environment.json_type import Json
from tests.integration.app.agent_clients import opened, recorded
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.openai_clients import MESSAGES

_REQUESTS = Path(__file__).parent / "first_requests"
CODEX: Json = json.loads((_REQUESTS / "codex.json").read_text())
CLAUDE_CODE: Json = json.loads((_REQUESTS / "claude_code.json").read_text())
WAIT: Json = {"type": "function", "namespace": "multi_agent_v1", "name": "wait_agent"}
ANSWER: Json = {
    "type": "object",
    "properties": {"title": {"enum": ["hello"]}},
    "required": ["title"],
    "additionalProperties": False,
}
"""A schema of which any reply is shorter than MOST_TOKENS, whatever the model makes of the white space."""
MOST_TOKENS = 400
NO_WEB_SEARCH = "The hosted tool {} is not offered to the model: there are no hosted tools here."


def hint(name: str) -> str:
    return f"The hint {name} was accepted and has no effect."


async def ask(stage: ModelStage, session: Json, path: str, body: Json) -> httpx.Response:
    headers = bearer(session["api_key"])
    return await stage.service.client.post(f"/sessions/{session['id']}/v1{path}", json=body, headers=headers)


async def warnings(stage: ModelStage, session: Json) -> list[str]:
    reply = await stage.service.client.get(f"/sessions/{session['id']}", headers=session["owner"])
    return list(reply.raise_for_status().json()["warnings"])


def events(reply: httpx.Response) -> list[Any]:
    lines = reply.raise_for_status().text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_codex_is_answered_and_offered_what_there_is(stage: ModelStage) -> None:
    session = await opened(stage)
    assert await warnings(stage, session) == []
    more = {"max_output_tokens": 8}
    received = events(await ask(stage, session, "/responses", CODEX | more))
    assert received[-1]["type"] in ("response.completed", "response.incomplete")
    assert await warnings(stage, session) == [
        *map(hint, ("reasoning", "prompt_cache_key", "client_metadata")),
        NO_WEB_SEARCH.format("web_search"),
    ]
    [call] = await recorded(stage, session)
    assert [message["role"] for message in call["messages"]] == ["developer", "developer", "user", "user"]
    offered = [tool["function"]["name"] for tool in call["tools"]]
    functions, agents = ["exec_command", "view_image"], ["multi_agent_v1__close_agent", "multi_agent_v1__wait_agent"]
    assert offered == functions + agents
    # The next turn has another id in its metadata. What was noted is not noted again, and other hints are.
    again = CODEX | more | {"client_metadata": {"turn_id": "2"}, "text": {"verbosity": "low"}}
    events(await ask(stage, session, "/responses", again))
    assert (await warnings(stage, session))[4:] == [hint("text.verbosity")]
    assert len(await recorded(stage, session)) == 1  # the same request: the agent was started again


async def test_a_call_of_a_function_in_a_namespace_is_made_and_given_back_with_it(stage: ModelStage) -> None:
    session = await opened(stage)
    [namespace] = [tool for tool in CODEX["tools"] if tool["type"] == "namespace"]
    bounded = namespace | {"tools": [tool | {"parameters": ANSWER, "strict": True} for tool in namespace["tools"]]}
    body = CODEX | {"tools": [bounded], "tool_choice": WAIT, "stream": False, "max_output_tokens": MOST_TOKENS}
    [call] = (await ask(stage, session, "/responses", body)).raise_for_status().json()["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "multi_agent_v1", "wait_agent")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    longer = body | {"input": [*CODEX["input"], call, result], "stream": True}
    received = events(await ask(stage, session, "/responses", longer))
    [added] = [event["item"] for event in received if event["type"] == "response.output_item.done"]
    assert (added["namespace"], added["name"]) == ("multi_agent_v1", "wait_agent")
    first, second = await recorded(stage, session)
    [earlier_call] = second["messages"][-2]["tool_calls"]
    assert earlier_call["function"]["name"] == "multi_agent_v1__wait_agent"
    sampled = len(first["completion"]["choices"][0]["token_ids"])
    assert len(second["completion"]["prompt_token_ids"]) > len(first["completion"]["prompt_token_ids"]) + sampled


async def test_claude_code_is_answered_and_its_system_messages_are_shown(stage: ModelStage) -> None:
    session = await opened(stage)
    more = {"max_tokens": 8}
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    received = events(
        await ask(stage, session, "/messages", CLAUDE_CODE | more | {"tools": [*CLAUDE_CODE["tools"], hosted]})
    )
    assert [received[0]["type"], received[-1]["type"]] == ["message_start", "message_stop"]
    assert await warnings(stage, session) == [
        *map(hint, ("thinking", "context_management", "output_config.effort")),
        NO_WEB_SEARCH.format("web_search_20250305"),
    ]
    [call] = await recorded(stage, session)
    assert [message["role"] for message in call["messages"]] == ["system", "user", "system"]
    assert call["messages"][2]["content"] == CLAUDE_CODE["messages"][1]["content"]
    assert [tool["function"]["name"] for tool in call["tools"]] == ["Bash", "Read"]
    counted = await ask(stage, session, "/messages/count_tokens", CLAUDE_CODE)
    assert counted.raise_for_status().json()["input_tokens"] == len(call["completion"]["prompt_token_ids"])


async def test_a_schema_in_output_config_is_honoured(stage: ModelStage) -> None:
    output_config = {"format": {"type": "json_schema", "schema": ANSWER}, "effort": None}
    body = CLAUDE_CODE | {"output_config": output_config, "tools": [], "stream": False, "max_tokens": MOST_TOKENS}
    reply = await ask(stage, await opened(stage), "/messages", body)
    [block] = reply.raise_for_status().json()["content"]
    assert json.loads(block["text"]) == {"title": "hello"}


@pytest.mark.parametrize("wanted", ["tool", "any"])
async def test_a_hosted_tool_that_must_be_used_is_refused(stage: ModelStage, wanted: str) -> None:
    body = CLAUDE_CODE | {
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": wanted, "name": "web_search"},
    }
    reply = await ask(stage, await opened(stage), "/messages", body)
    assert reply.status_code == 400
    assert "tool_choice" in reply.json()["error"]["message"]


async def test_hints_of_chat_completions_are_noted(stage: ModelStage) -> None:
    session = await opened(stage)
    body = {"messages": MESSAGES, "max_tokens": 2, "reasoning_effort": "high", "verbosity": "low", "user": "me"}
    (await ask(stage, session, "/chat/completions", body)).raise_for_status()
    assert await warnings(stage, session) == [hint("reasoning_effort"), hint("verbosity")]


async def test_both_are_answered_with_an_ordinary_key(stage: ModelStage) -> None:
    headers = bearer(await stage.key())
    for path, body in (
        ("/responses", CODEX | {"model": CALLER, "max_output_tokens": 4}),
        ("/messages", CLAUDE_CODE | {"model": CALLER, "max_tokens": 4}),
    ):
        reply = await stage.service.client.post(f"/v1{path}", json=body, headers=headers)
        assert events(reply)[-1]["type"] in ("response.completed", "response.incomplete", "message_stop")


async def test_a_full_context_is_reported_in_words_that_agents_look_for(stage: ModelStage) -> None:
    session, long = await opened(stage), "word " * 9_000
    pattern = r"maximum context length is 4096 tokens\. However, your messages (resulted in|have at least) \d+ tokens"
    for path, body in (
        ("/responses", CODEX | {"input": long}),
        ("/chat/completions", {"messages": [{"role": "user", "content": long}], "stream": True}),
    ):
        reply = await ask(stage, session, path, body)
        error = reply.json()["error"]
        assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["code"] == "context_length_exceeded"
        assert re.search(pattern, error["message"])
    reply = await ask(stage, session, "/messages", CLAUDE_CODE | {"messages": [{"role": "user", "content": long}]})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 4096 maximum", reply.json()["error"]["message"])


async def test_a_session_has_a_limit_of_calls(stage: ModelStage) -> None:
    async def limit(**more: Any) -> Any:
        session = await opened(stage, **more)
        reply = await stage.service.client.get(f"/sessions/{session['id']}", headers=session["owner"])
        return reply.json()["max_calls"]

    assert await limit() == 500
    assert await limit(limits={"max_calls": 9_000}) == 9_000
    session = await opened(stage, limits={"max_calls": 1})
    events(await ask(stage, session, "/messages", CLAUDE_CODE | {"max_tokens": 1}))
    reply = await ask(stage, session, "/messages", CLAUDE_CODE | {"max_tokens": 2})
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert "limit of calls is reached" in error["message"]
    assert not re.search(r"\d", error["message"])  # opencode takes some numbers for a status, and repeats the request
