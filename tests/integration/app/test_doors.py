"""One protocol has one set of rules, whether a model is asked under /v1 or in a session."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.app.agent_clients import opened
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.openai_clients import SEARCH

QUESTION = {"role": "user", "content": [{"type": "input_text", "text": "When is the kickoff?"}]}
NEXT = {"role": "user", "content": "Are you sure?"}
FUNCTION: Any = {"type": "function", **SEARCH["function"]}
Door = tuple[str, dict[str, str]]


async def doors(stage: ModelStage, **more: Any) -> dict[str, Door]:
    """The base URL and the headers of both doors to the same model."""
    session = await opened(stage, **more)
    owner = bearer(await stage.key())
    return {"/v1": (stage.base_url, owner), "session": (session["base_url"], bearer(session["api_key"]))}


async def posted(door: Door, path: str, body: Any, method: str = "POST") -> httpx.Response:
    async with httpx.AsyncClient(base_url=door[0], headers=door[1], timeout=60, trust_env=False) as http:
        return await http.request(method, f"{door[0]}{path}", json=body)


async def responded(door: Door, items: Any, **more: Any) -> Any:
    reply = await posted(door, "/responses", {"model": CALLER, "max_output_tokens": 48, "input": items} | more)
    assert reply.status_code == 200, reply.text
    return reply


def _events(stream: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.split("\n") if line.startswith("data: ")]


def _completed(stream: str) -> Any:
    """The response in the last event of a stream, whose items are those that its events named."""
    events = _events(stream)
    response = events[-1]["response"]
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in response["output"]]
    return response


def _reference(item: Any, *, typed: bool) -> Any:
    return {"id": item["id"]} | ({"type": "item_reference"} if typed else {})


@pytest.mark.parametrize("known", [0, 10_000])
async def test_items_of_earlier_replies_are_taken_by_reference(
    stage: ModelStage, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text and a call, whole or streamed, also by a process that does not know the session, as after a restart."""
    monkeypatch.setattr("learnloop_service.app.gateway.gateway._MOST_KNOWN", known)
    for door in (await doors(stage)).values():
        text = (await responded(door, [QUESTION])).json()["output"][0]
        # At a temperature, the call's text is sometimes longer than the reply may be.
        calling = {"tools": [FUNCTION], "tool_choice": "required", "temperature": 0, "stream": True}
        completed = _completed((await responded(door, [QUESTION], **calling)).text)
        [call] = [item for item in completed["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "nothing"}
        for typed in (True, False):
            whole, referred = [
                (
                    await responded(door, [QUESTION, text_item, NEXT, called, result], tools=[FUNCTION], temperature=0)
                ).json()
                for text_item, called in ((text, call), (_reference(text, typed=typed), _reference(call, typed=typed)))
            ]
            assert referred["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
            assert [item.get("content") for item in referred["output"]] == [
                item.get("content") for item in whole["output"]
            ]


async def test_an_item_that_the_door_never_gave_is_refused_by_its_id(stage: ModelStage) -> None:
    both = await doors(stage)
    other = (await doors(stage))["session"]
    foreign = (await responded(other, [QUESTION])).json()["output"][0]
    for door in both.values():
        for id in ("msg_unknown", foreign["id"]):
            items = [QUESTION, {"type": "item_reference", "id": id}, NEXT]
            refused = await posted(door, "/responses", {"model": CALLER, "input": items})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
            assert id in refused.json()["error"]["message"]


async def _text_of(door: Door, asked_for: Any) -> str:
    reply = (await posted(door, "/messages", asked_for)).raise_for_status().json()
    return str(reply["content"][0]["text"])


async def test_the_stop_sequence_that_ended_a_message_is_named(stage: ModelStage) -> None:
    question = {"model": "tiny", "max_tokens": 24, "temperature": 0, "messages": [NEXT]}
    for door in (await doors(stage, model="tiny")).values():
        text = await _text_of(door, question)
        for stop in (text[1:3], text[2:8], text[:1]):
            request = question | {"stop_sequences": ["never", stop]}
            message = (await posted(door, "/messages", request)).json()
            assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
            events = _events((await posted(door, "/messages", request | {"stream": True})).text)
            [end] = [event["delta"] for event in events if event["type"] == "message_delta"]
            assert end == {"stop_reason": "stop_sequence", "stop_sequence": stop}
        unmet = (await posted(door, "/messages", question | {"stop_sequences": ["never"]})).json()
        assert unmet["stop_sequence"] is None
        assert unmet["stop_reason"] in ("max_tokens", "end_turn")
        chat = {**question, "stop": [text[1:3]]}
        completed = (await posted(door, "/chat/completions", chat)).json()["choices"][0]
        assert (completed["finish_reason"], completed["stop_reason"]) == ("stop", text[1:3])


BEGUN: list[Any] = [
    "The kickoff is",
    [{"type": "text", "text": "{"}],
    [{"type": "tool_use", "id": "a", "name": "search_inbox", "input": {}}],
]


async def test_a_message_that_begins_the_reply_is_refused_and_an_empty_one_left_out(stage: ModelStage) -> None:
    body = {"model": CALLER, "max_tokens": 4, "messages": [NEXT]}
    for door in (await doors(stage)).values():
        alone = (await posted(door, "/messages", body)).json()["usage"]
        for content in BEGUN:
            begun = body | {"messages": [NEXT, {"role": "assistant", "content": content}]}
            refused = await posted(door, "/messages", begun)
            assert refused.status_code == 400
            assert "messages.1: a reply cannot continue a message" in refused.json()["error"]["message"]
            assert (await posted(door, "/messages/count_tokens", begun)).json()["input_tokens"] > 0
        for content in ("", [{"type": "text", "text": ""}]):
            empty = body | {"messages": [NEXT, {"role": "assistant", "content": content}]}
            usage = (await posted(door, "/messages", empty)).json()["usage"]
            counted = ("input_tokens", "cache_read_input_tokens")
            assert sum(usage[name] for name in counted) == sum(alone[name] for name in counted)


@pytest.mark.parametrize("choice", ["any", {"type": "any"}])
async def test_any_tool_may_be_demanded_in_every_protocol(stage: ModelStage, choice: Any) -> None:
    tool = {"name": SEARCH["function"]["name"], "input_schema": SEARCH["function"]["parameters"]}
    for door in (await doors(stage)).values():
        more = {"model": CALLER, "tool_choice": choice}
        chat = await posted(door, "/chat/completions", more | {"messages": [NEXT], "tools": [SEARCH]})
        assert chat.json()["choices"][0]["finish_reason"] == "tool_calls", chat.text
        message = await posted(door, "/messages", more | {"messages": [NEXT], "tools": [tool], "max_tokens": 64})
        assert message.json()["stop_reason"] == "tool_use", message.text
        if isinstance(choice, str):
            response = await responded(door, [QUESTION], tools=[FUNCTION], tool_choice=choice)
            assert response.json()["output"][-1]["type"] == "function_call"


UNTIDY = [
    ("/{}/chat/completions", "chat/completions"),
    ("/chat/completions/", "chat/completions"),
    ("//chat/completions", "chat/completions"),
    ("/v1/chat/completions", "chat/completions"),
    ("/v1/messages", "messages"),
    ("/messages/", "messages"),
    ("//responses//", "responses"),
]


async def test_a_path_with_a_part_too_many_says_what_is_right(stage: ModelStage) -> None:
    for base, headers in (await doors(stage)).values():
        prefix = httpx.URL(base).path
        for path, intended in UNTIDY:
            refused = await posted((base, headers), path.format(""), {"model": CALLER, "messages": [NEXT]})
            assert refused.status_code == 404, (path, refused.text)
            assert f"Did you mean {prefix}/{intended}?" in refused.json()["error"]["message"]
            assert ("type" in refused.json()) == (intended == "messages"), "in the protocol's own form"
    engine = {"authorization": "Bearer the-key-of-this-engine"}
    refused = await posted((stage.engine.base_url, engine), "//chat/completions/", {})
    assert "did you mean /v1/chat/completions?" in refused.json()["error"]["message"]
    nowhere = await posted((stage.base_url, bearer(await stage.key())), "//nowhere/", {})
    assert "Did you mean" not in nowhere.json()["error"]["message"]
