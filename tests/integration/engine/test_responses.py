"""The Responses API of a real engine process, through OpenAI's own client and types."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseOutputMessage,
    ResponseStreamEvent,
)
from pydantic import BaseModel, TypeAdapter

from tests.openai_clients import ARGUMENTS, MESSAGES, NO_JSON, SEARCH

TOOL: Any = {"type": "function", **SEARCH["function"]}
QUESTION = MESSAGES[1]["content"]
_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def _body(**more: Any) -> Any:
    return {"model": "tiny", "input": QUESTION, "instructions": "Answer.", "max_output_tokens": 10, **more}


def _tokens(response: Response) -> list[int]:
    [message] = response.output
    assert isinstance(message, ResponseOutputMessage)
    [part] = message.content
    assert part.type == "output_text"
    return [int(token.token.removeprefix("token_id:")) for token in part.logprobs or ()]


async def _events(http: httpx.AsyncClient, **body: Any) -> list[ResponseStreamEvent]:
    """The events of a streamed response, each checked against OpenAI's types, field by field."""
    reply = (await http.post("/responses", json={**body, "stream": True})).raise_for_status()
    assert reply.headers["content-type"].startswith("text/event-stream")
    return list(_read(reply.text))


def _read(text: str) -> Iterator[ResponseStreamEvent]:
    for number, block in enumerate(text.strip().split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        yield _EVENT.validate_python(event)


async def test_a_response_is_what_a_chat_completion_says(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    seeded: Any = {"extra_body": {"seed": 1}, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = await client.responses.create(**_body(**seeded, metadata={"a": "b"}))
    chat = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=10, seed=1, logprobs=True, top_logprobs=2
    )
    assert response.output_text == chat.choices[0].message.content
    assert chat.choices[0].logprobs is not None
    assert [f"token_id:{token}" for token in _tokens(response)] == [
        token.token for token in chat.choices[0].logprobs.content or ()
    ]
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    assert response.model == "tiny"
    assert response.metadata == {"a": "b"}
    assert response.tools == []
    cut = chat.choices[0].finish_reason == "length"
    assert response.status == ("incomplete" if cut else "completed")
    raw = (await http.post("/responses", json=_body(seed=1))).raise_for_status().json()
    Response.model_validate(raw, strict=False)
    assert "logprobs" in raw["output"][0]["content"][0]


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_says_the_same_as_a_whole_response(http: httpx.AsyncClient, seed: int) -> None:
    body = _body(seed=seed, include=["message.output_text.logprobs"])
    whole = Response.model_validate((await http.post("/responses", json=body)).raise_for_status().json())
    events = await _events(http, **body)
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert isinstance(last, ResponseCompletedEvent | ResponseIncompleteEvent)
    assert last.response.output_text == whole.output_text
    assert _tokens(last.response) == _tokens(whole) != []
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    assert last.response.incomplete_details == whole.incomplete_details
    assert last.response.id != whole.id


async def test_tool_calls(client: openai.AsyncOpenAI, http: httpx.AsyncClient, caller: str) -> None:
    body = _body(model=caller, tools=[TOOL], temperature=0, max_output_tokens=60)
    response = await client.responses.create(**body)
    assert response.status == "completed"
    [call] = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "search_inbox"
    assert json.loads(call.arguments) == ARGUMENTS
    events = await _events(http, **body)
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    async with client.responses.stream(**body) as stream:  # the client's own accumulator
        async for _ in stream:
            pass
        [streamed] = (await stream.get_final_response()).output
    assert streamed.type == "function_call"
    assert streamed.call_id == call.call_id
    assert streamed.arguments == call.arguments


async def test_the_sampled_turn_is_recognised_in_every_form_of_a_conversation(
    client: openai.AsyncOpenAI, caller: str
) -> None:
    body = _body(model=caller, tools=[TOOL], temperature=0, max_output_tokens=60)
    first = await client.responses.create(**body)
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "m41 Kickoff moved"}
    question: Any = {"role": "user", "content": QUESTION}
    ways: list[dict[str, Any]] = [
        {"previous_response_id": first.id, "input": [answer]},
        {"input": [question, call.model_dump(exclude_none=True), answer]},
        {"input": [question, {"type": "item_reference", "id": call.id}, answer]},
        {
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {key: getattr(call, key) for key in ("type", "call_id", "name", "arguments")},
                answer | {"output": [{"type": "input_text", "text": "m41 Kickoff moved"}]},
            ]
        },
    ]
    seconds = [await client.responses.create(**{**body, **way}) for way in ways]
    assert first.usage is not None
    assert {second.usage.input_tokens for second in seconds if second.usage} == {
        seconds[0].usage.input_tokens if seconds[0].usage else None
    }
    for second in seconds:
        assert second.usage is not None
        cached = second.usage.input_tokens_details.cached_tokens
        assert cached >= first.usage.input_tokens + first.usage.output_tokens - 1

    chat: Any = {"model": caller, "tools": [SEARCH], "temperature": 0, "max_tokens": 1}
    function = {"name": call.name, "arguments": call.arguments}
    calling: Any = {"role": "assistant", "tool_calls": [{"id": call.call_id, "type": "function", "function": function}]}
    result: Any = {"role": "tool", "tool_call_id": call.call_id, "content": "m41 Kickoff moved"}
    same = await client.chat.completions.create(**chat, messages=[*MESSAGES, calling, result])
    assert same.usage is not None
    assert seconds[0].usage is not None
    assert same.usage.prompt_tokens == seconds[0].usage.input_tokens


class Answer(BaseModel):
    """What the model must say."""

    is_known: bool


async def test_a_parsed_response(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.parse(
        model="tiny", input=QUESTION, text_format=Answer, temperature=0, max_output_tokens=100
    )
    assert response.status == "completed"
    assert isinstance(response.output_parsed, Answer)


async def test_a_response_is_continued_by_its_own_project_only(client: openai.AsyncOpenAI) -> None:
    owner, others = (client.with_options(project=name) for name in ("mine", "others"))
    first = await owner.responses.create(**_body())
    again: Any = _body(previous_response_id=first.id, input="And where?")
    second = await owner.responses.create(**again)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.previous_response_id == first.id
    referring: Any = _body(input=[{"type": "item_reference", "id": first.output[0].id}])
    for refused, param in ((again, "previous_response_id"), (referring, "input")):
        with pytest.raises(openai.BadRequestError, match="send the items") as caught:
            await others.responses.create(**refused)
        assert caught.value.param == param
    unstored = await owner.responses.create(**_body(store=False))
    assert unstored.to_dict()["store"] is False
    with pytest.raises(openai.BadRequestError, match="send the items"):
        await owner.responses.create(**_body(previous_response_id=unstored.id))


_LONG = {"const": "ab" * 100_000}
_OBJECT = {"type": "object", "properties": {"a": _LONG}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "at least 1"),
    ({"input": [{"role": "poet", "content": "x"}]}, "input", "poet"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "must be text"),
    ({"input": [{"type": "computer_call_output", "call_id": "c"}]}, "input", "item 0 has type 'computer_call_output'"),
    ({"input": [{"type": "function_call", "name": "f", "call_id": "c"}]}, "input", "arguments must be text"),
    ({"tools": [{"type": "local_shell"}]}, "tools", "tool 0 is of type 'local_shell'"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "custom"}]}]}, "tools", "tool 0.0 is of type"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools", "namespace 0 needs a name"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools", "tool 0"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice", "'web_search' is not supported"),
    ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice", "'other'"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
    ({"temperature": -1}, "temperature", "temperature"),
    ({"top_p": 0}, "top_p", "top_p"),
    ({"include": ["message.thoughts"]}, "include.0", "include.0"),
    ({"background": True}, "background", "background is not supported"),
    ({"conversation": "conv_1"}, "conversation", "conversation is not supported"),
    ({"truncation": "auto"}, "truncation", "truncation is not supported"),
    ({"repetition_penalty": 1.1}, "repetition_penalty", "repetition_penalty is not supported"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": _LONG}}}, "text.format", "const; at most"),
    ({"tools": [TOOL | {"parameters": _OBJECT}], "tool_choice": "required"}, "tools", "const; at most"),
]


@pytest.mark.parametrize(("change", "param", "text"), REFUSED, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_refused_is_named(
    http: httpx.AsyncClient, change: dict[str, Any], param: str, text: str, stream: bool
) -> None:
    reply = await http.post("/responses", json=_body(**change, stream=stream))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert text in error["message"]
    assert (error["param"] or "input") == param


async def test_what_clients_send_by_default_is_accepted(http: httpx.AsyncClient) -> None:
    defaults = {
        "include": ["reasoning.encrypted_content"],
        "reasoning": {},
        "service_tier": "auto",
        "truncation": "disabled",
        "background": False,
        "conversation": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "user": "me",
        "prompt_cache_key": "key",
        "tools": [],
    }
    reply = await http.post("/responses", json=_body(**defaults))
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("body", [b"{", b"[]", *NO_JSON])
async def test_what_is_not_json(http: httpx.AsyncClient, body: bytes) -> None:
    reply = await http.post("/responses", content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "bad_json"


async def test_unknown_models(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(**_body(model="nobody/nothing"))
