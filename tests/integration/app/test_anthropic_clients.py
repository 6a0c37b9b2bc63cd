"""Anthropic's own client, as it comes: against an ordinary key, and in a session."""

from importlib import import_module
from typing import Any

import pytest

from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.training.rollout.histories import conversations
from tests.integration.app.agent_clients import opened, recorded
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.openai_clients import ARGUMENTS, SEARCH

TOOL: Any = {
    "name": SEARCH["function"]["name"],
    "description": SEARCH["function"]["description"],
    "input_schema": SEARCH["function"]["parameters"],
}
ASKED: Any = {
    "model": "claude-opus-9",
    "system": "Answer.",
    "messages": [{"role": "user", "content": "When is the kickoff?"}],
    "max_tokens": 64,
    "extra_body": {"temperature": 0},
}


@pytest.fixture(scope="module")
def anthropic() -> Any:
    """Imported when it is used: it takes seconds, and every process that runs tests collects this module."""
    return import_module("anthropic")


def client_of(anthropic: Any, session: Any) -> Any:
    base_url = session["base_url"].removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=base_url, api_key=session["api_key"], max_retries=0)


def with_results(reply: Any) -> Any:
    blocks = [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in reply.content]
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "Tuesday"}]}
        for block in reply.content
        if block.type == "tool_use"
    ]
    said_and_done = [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    return ASKED | {"messages": [*ASKED["messages"], *said_and_done]}


async def test_a_loop_over_tools_is_recorded_as_one_conversation(anthropic: Any, stage: ModelStage) -> None:
    session = await opened(stage)
    async with client_of(anthropic, session) as client:
        reply = await client.messages.create(**ASKED, tools=[TOOL])
        assert (reply.model, reply.stop_reason, reply.role) == (f"{CALLER}@1", "tool_use", "assistant")
        [use] = [block for block in reply.content if block.type == "tool_use"]
        assert (use.name, use.input) == (TOOL["name"], ARGUMENTS)
        assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) > 0
        must: Any = {"type": "tool", "name": TOOL["name"]}
        async with client.messages.stream(**with_results(reply), tools=[TOOL], tool_choice=must) as stream:
            events = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    assert [events[0], events[-1]] == ["message_start", "message_stop"]
    assert streamed.stop_reason == "tool_use"
    [again] = [block for block in streamed.content if block.type == "tool_use"]
    assert again.name == TOOL["name"]
    calls = await recorded(stage, session)
    assert [call["protocol"] for call in calls] == ["messages", "messages"]
    assert [message["role"] for message in calls[1]["messages"]] == ["system", "user", "assistant", "tool"]
    [conversation] = conversations(await SessionCalls(stage.service.database).of_last_attempt(session["id"]))
    assert len([item for item in conversation.messages_and_choices if not isinstance(item, dict)]) == 2
    async with client_of(anthropic, session) as client:  # started again: the recorded answer, in a stream this time
        async with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
            replayed = await stream.get_final_message()
        assert replayed.model_dump(exclude={"usage"}) == reply.model_dump(exclude={"usage"})
        assert len(await recorded(stage, session)) == 2


async def test_ordinary_keys_ask_by_a_models_name(anthropic: Any, stage: ModelStage) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=str(stage.service.client.base_url), api_key=await stage.key(), max_retries=0
    ) as client:
        more: Any = {"model": CALLER, "max_tokens": 1, "stop_sequences": ["never"]}
        reply = await client.messages.create(**ASKED | more)
        assert (reply.model, reply.usage.output_tokens) == (f"{CALLER}@1", 1)
        async with client.messages.stream(**ASKED | {"model": "tiny", "max_tokens": 4}) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            assert (await stream.get_final_message()).content[0].model_dump()["text"] == text
        with pytest.raises(anthropic.NotFoundError, match="no model 'mail/none'") as missing:
            await client.messages.create(**ASKED | {"model": "mail/none"})
        error = {"type": "not_found_error", "message": "no model 'mail/none'"}
        assert missing.value.body == {"type": "error", "error": error}


async def test_a_schema_with_literals_beyond_the_limit_is_refused(anthropic: Any, stage: ModelStage) -> None:
    long = {"type": "object", "properties": {"a": {"const": "ab" * 100_000}}}
    tool = TOOL | {"input_schema": long}
    async with client_of(anthropic, await opened(stage)) as client:
        with pytest.raises(anthropic.BadRequestError, match="const; at most 120000"):
            await client.messages.create(**ASKED, tools=[tool], tool_choice={"type": "any"})


async def test_tokens_are_counted_as_the_prompt_has_them(anthropic: Any, stage: ModelStage) -> None:
    session = await opened(stage)
    prompt: Any = {name: ASKED[name] for name in ("model", "system", "messages")}

    def whole(usage: Any) -> int:
        return int(usage.input_tokens + (usage.cache_read_input_tokens or 0))

    async with client_of(anthropic, session) as client:
        for more in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": {"type": "none"}}):
            counted = await client.messages.count_tokens(**prompt, **more)
            reply = await client.messages.create(**ASKED, **more)
            assert counted.input_tokens == whole(reply.usage)
        reply = await client.messages.create(**ASKED, tools=[TOOL])
        longer = {name: value for name, value in with_results(reply).items() if name in prompt}
        counted = await client.messages.count_tokens(**longer, tools=[TOOL])
        assert counted.input_tokens == whole((await client.messages.create(**with_results(reply), tools=[TOOL])).usage)
        with pytest.raises(anthropic.BadRequestError, match="bash_20250124 is not supported"):
            await client.messages.count_tokens(**prompt, tools=[{"type": "bash_20250124", "name": "bash"}])
        calls = len(await recorded(stage, session))
        assert calls == 5  # to count is no call
        ended = await stage.service.client.post(
            f"/sessions/{session['id']}/outcome", json={"reward": 1.0}, headers=bearer(session["api_key"])
        )
        assert ended.status_code == 200
        with pytest.raises(anthropic.PermissionDeniedError, match="has ended"):
            await client.messages.count_tokens(**prompt)
    url = str(stage.service.client.base_url)
    async with anthropic.AsyncAnthropic(base_url=url, api_key=await stage.key(), max_retries=0) as client:
        counted = await client.messages.count_tokens(**prompt | {"model": CALLER})
        assert counted.input_tokens == whole((await client.messages.create(**ASKED | {"model": CALLER})).usage)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.count_tokens(**prompt | {"model": "mail/none"})


async def test_what_is_not_supported_is_refused_by_name(anthropic: Any, stage: ModelStage) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    async with client_of(anthropic, await opened(stage)) as client:
        for more, why in (
            ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124 is not supported"),
            ({"extra_body": {"output_config": {"style": "terse"}}}, "output_config.style is not supported"),
            ({"extra_body": {"output_config": {"format": {"type": "xml"}}}}, "output_config.format must have"),
            ({"messages": [{"role": "user", "content": [image]}]}, "image"),
            ({"extra_body": {"mcp_servers": [{}]}}, "mcp_servers is not supported"),
            ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice"),
        ):
            with pytest.raises(anthropic.BadRequestError, match=why):
                await client.messages.create(**ASKED | more)
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
                await client.messages.create(
                    **ASKED | {"messages": [{"role": "user", "content": "a " * 90_000}], "stream": stream}
                )
    async with client_of(anthropic, await opened(stage) | {"api_key": "las_" + "x" * 43}) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASKED)
