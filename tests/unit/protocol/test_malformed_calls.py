"""Which tool calls of a reply cannot be read, whichever server it is from."""

from typing import Any

import pytest

from learnloop_service.training.protocol.malformed_calls import MALFORMED, is_malformed, is_malformed_response


def _call(arguments: object) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "search", "arguments": arguments}}


@pytest.mark.parametrize(
    ("call", "malformed"),
    [
        (_call("{}"), False),
        (_call('{"keywords": ["a"]}'), False),
        (_call(""), False),
        (_call('{"keywords": ["a'), True),
        (_call("[]"), True),
        (_call(None), True),
        (_call({"keywords": []}), True),
        ({"id": "c1"}, True),
        ({"function": None}, True),
        ("search", True),
    ],
)
def test_a_call_is_readable_if_its_arguments_are_the_text_of_an_object(call: Any, malformed: bool) -> None:
    choice: dict[str, Any] = {"message": {"tool_calls": [_call("{}"), call]}}
    assert is_malformed({"choices": [choice]}) is malformed
    item = {"type": "function_call", **(call.get("function") or {})} if isinstance(call, dict) else None
    if item is not None:
        assert is_malformed_response({"output": [{"type": "message"}, item]}) is malformed


def test_our_engine_says_why_a_text_is_no_call() -> None:
    assert is_malformed({"choices": [{"message": {"content": "<tool_call>"}, MALFORMED: "It is cut."}]})
    assert is_malformed_response({"output": [], MALFORMED: "It is cut."})
    assert not is_malformed({"choices": [{"message": {"content": "<tool_call>"}}]})
    assert not is_malformed({})
    assert not is_malformed_response({})
