"""Replies of Anthropic's API made of chat completions, whatever server these are from."""

from typing import Any

import pytest

from learnloop_service.app.gateway.anthropic_messages import asked

BODY = {"model": "agent", "max_tokens": 20, "messages": [{"role": "user", "content": "When?"}]}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"id": "call_1", "function": {"name": "look", "arguments": '{"at": 1}'}}, ("call_1", "look", {"at": 1})),
        ({"id": "call_1", "function": {"name": "look", "arguments": ""}}, ("call_1", "look", {})),
        ({"id": "call_1", "function": {"name": "look", "arguments": None}}, ("call_1", "look", {})),
        ({"id": "call_1", "function": {"name": "look", "arguments": "{"}}, ("call_1", "look", {})),
        ({"id": "call_1", "function": {"name": "look", "arguments": "[1]"}}, ("call_1", "look", {})),
        ({"id": "call_1", "function": None}, ("call_1", None, {})),
        ({}, (None, None, {})),
    ],
)
def test_a_call_of_another_server_is_shown_with_what_it_has(call: dict[str, Any], expected: tuple[Any, ...]) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reply = asked(BODY).document({"id": "x", "choices": [{"message": message, "finish_reason": "tool_calls"}]})
    [block] = reply["content"]
    assert block["type"] == "tool_use"
    assert tuple(block[name] for name in ("id", "name", "input")) == expected
