"""Responses: items and messages, the events of odd replies, what is kept."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.http.errors import ApiError
from learnloop_service.training.engine.http.responses.stored import StoredResponses
from learnloop_service.training.protocol.responses.events import ResponseEvents
from learnloop_service.training.protocol.responses.items import messages_of
from learnloop_service.training.protocol.responses.reply import ResponseFields
from learnloop_service.training.protocol.responses.request import ResponsesRequest


def _call(number: int) -> dict[str, Json]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "search", "arguments": "{}"}


def _result(number: int) -> dict[str, Json]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": f"r{number}"}


def _message(text: str) -> dict[str, Json]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _turn(content: str, *numbers: int) -> dict[str, Json]:
    function = {"name": "search", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function} for number in numbers],
    }


def test_calls_belong_to_the_turn_that_made_them() -> None:
    items = [
        _message("Let me see."),
        _call(1),
        _call(2),
        _result(1),
        _result(2),
        _call(3),
        _result(3),
        _message("Done."),
    ]
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": f"r{number}"} for number in (1, 2, 3)]
    assert messages_of(items, None) == [
        _turn("Let me see.", 1, 2),
        *results[:2],
        _turn("", 3),
        results[2],
        {"role": "assistant", "content": "Done."},
    ]


def test_a_turn_ends_where_somebody_else_speaks() -> None:
    user = {"role": "user", "content": "Go on."}
    assert messages_of([_message("A"), user, _call(1)], "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "A"},
        user,
        _turn("", 1),
    ]


def _events(*deltas: dict[str, Json], finish: str = "stop") -> list[dict[str, Json]]:
    async def chunks() -> AsyncIterator[dict[str, Json]]:
        for delta in deltas:
            yield {"choices": [{"delta": delta, "logprobs": None, "finish_reason": None}]}
        yield {"choices": [{"delta": {}, "logprobs": None, "finish_reason": finish}]}

    async def collect() -> list[dict[str, Json]]:
        events = ResponseEvents(ResponseFields(ResponsesRequest(model="m", input="x"), "m"))
        return [event async for event in events.of(chunks())]

    return asyncio.run(collect())


def test_a_reply_of_nothing_is_an_empty_text() -> None:
    events = _events()
    [message] = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == ""
    assert [event["type"].rpartition(".")[0] for event in events[2:-1]] == [
        "response.output_item",
        "response.content_part",
        "response.output_text",
        "response.content_part",
        "response.output_item",
    ]


def test_text_and_calls_are_items_in_this_order() -> None:
    calls = [{"index": n, "id": f"c{n}", "function": {"name": "search", "arguments": "{}"}} for n in range(2)]
    events = _events({"content": "I "}, {"content": "look."}, {"tool_calls": calls}, finish="tool_calls")
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [(event["output_index"], event["item"]["type"]) for event in added] == [
        (0, "message"),
        (1, "function_call"),
        (2, "function_call"),
    ]
    output = events[-1]["response"]["output"]
    assert output[0]["content"][0]["text"] == "I look."
    assert [item.get("call_id") for item in output] == [None, "c0", "c1"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def _output(number: int) -> list[dict[str, Json]]:
    return [{"type": "message", "id": f"msg_{number}", "role": "assistant", "content": "x" * 100}]


def _kept_numbers(stored: StoredResponses, scope: str, count: int) -> list[int]:
    numbers = []
    for number in range(count):
        try:
            stored.conversation(scope, f"resp_{number}")
            stored.item(scope, f"msg_{number}")
        except ApiError:
            with pytest.raises(ApiError):
                stored.item(scope, f"msg_{number}")
        else:
            numbers.append(number)
    return numbers


def test_a_project_that_keeps_much_loses_only_its_own_responses() -> None:
    stored = StoredResponses(max_bytes=2_000)
    stored.keep("small", "resp_0", [{"role": "user", "content": "?"}], _output(0))
    for number in range(50):
        stored.keep("large", f"resp_{number}", [], _output(number))
    assert _kept_numbers(stored, "small", 1) == [0]
    numbers = _kept_numbers(stored, "large", 50)
    assert numbers == list(range(50 - len(numbers), 50))
    assert 5 < len(numbers) < 15


def test_what_is_continued_stays() -> None:
    stored = StoredResponses(max_bytes=2_000)
    for number in range(50):
        stored.keep("mail", f"resp_{number}", [], _output(number))
        stored.conversation("mail", "resp_0")
    assert 0 in _kept_numbers(stored, "mail", 50)


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    stored = StoredResponses(max_bytes=50)
    stored.keep("mail", "resp_0", [], _output(0))
    assert _kept_numbers(stored, "mail", 1) == []
