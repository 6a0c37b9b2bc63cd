"""One conversation, as different clients write it, gives the same messages at every door."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.agent_sessions.canonical import BadRequestBody, canonical
from learnloop_service.app.datasets.conversation_forms import conversation
from learnloop_service.app.datasets.demonstrations import checked
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.protocol.chat_reader import arguments_text, read_messages, read_tool_choice

USER = {"role": "user", "content": "What time is it?"}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}
SAYS = {"role": "assistant", "content": "At noon."}
PLAIN = [USER, CALLS, RESULT, SAYS]
_EMPTY_VALUES: list[Any] = [None, [], {}]
_EMPTY: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
_OLDER_CALL = {"name": "now", "arguments": "{}"}

AS_CLIENTS_WRITE_IT: list[tuple[str, list[Any]]] = [
    ("OpenAI's model_dump", [USER, {**CALLS, **_EMPTY}, RESULT, {**SAYS, **_EMPTY, "tool_calls": None}]),
    ("OpenAI's parse", [USER, {**CALLS, "parsed": None}, RESULT, {**SAYS, "parsed": {"a": 1}, "tool_calls": []}]),
    ("a stream's call", [USER, {**CALLS, "tool_calls": [{**CALL, "index": 0}]}, RESULT, {**SAYS, "index": 0}]),
    (
        "parsed arguments",
        [USER, {**CALLS, "tool_calls": [{**CALL, "function": {**_OLDER_CALL, "parsed_arguments": {}}}]}, RESULT, SAYS],
    ),
    ("the older API", [USER, {"role": "assistant", "content": None, "function_call": _OLDER_CALL},
                       {"role": "function", "name": "now", "content": "noon"}, SAYS]),
    ("a text in parts", [USER, CALLS, RESULT, {**SAYS, "content": [{"type": "text", "text": "At "},
                                                                   {"type": "text", "text": "noon."}]}]),
    ("a refusal", [USER, CALLS, RESULT, {"role": "assistant", "content": None, "refusal": "At noon."}]),
    *(
        (f"arguments {arguments!r}",
         [USER, {**CALLS, "tool_calls": [{**CALL, "function": {"name": "now", "arguments": arguments}}]}, RESULT, SAYS])
        for arguments in ("", " ", "null", *_EMPTY_VALUES)
    ),
]  # fmt: skip


def _model_view(messages: Any) -> Any:
    """What a model sees of messages."""
    return [
        (
            message["role"],
            message.get("content") or "",
            [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()],
            message.get("tool_call_id"),
        )
        for message in messages
    ]


@pytest.mark.parametrize(
    "messages", [messages for _, messages in AS_CLIENTS_WRITE_IT], ids=[name for name, _ in AS_CLIENTS_WRITE_IT]
)
def test_every_door_reads_the_same(messages: list[Any]) -> None:
    engine = EngineChatRequest.model_validate({"model": "m", "messages": messages, "tools": TOOLS}).messages
    session = canonical({"messages": messages, "tools": TOOLS}, None)
    assert _model_view(engine) == _model_view(session.messages) == _model_view(PLAIN)
    assert _model_view(checked({"messages": messages, "tools": TOOLS})["messages"]) == _model_view(PLAIN)
    assert _model_view(conversation({"messages": messages, "tools": TOOLS}).messages) == _model_view(PLAIN)


def test_a_session_recognizes_the_same_request_in_each_form() -> None:
    """An agent that starts again can be another version of its client."""
    forms = [AS_CLIENTS_WRITE_IT[0], *AS_CLIENTS_WRITE_IT[5:]]
    assert {canonical({"messages": messages}, None).digest for _, messages in forms} == {
        canonical({"messages": PLAIN}, None).digest
    }


_texts = st.text(alphabet="ab {}\n\u4e2d", max_size=6)
_calls = st.lists(
    st.builds(lambda name, value: {**CALL, "id": name, "function": {"name": name, "arguments": json.dumps(value)}},
              st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from("xy"), st.integers(0, 9), max_size=2)),
    min_size=1, max_size=2,
)  # fmt: skip
_messages = st.lists(
    st.one_of(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), _texts),
        st.builds(lambda calls: {"role": "assistant", "tool_calls": calls}, _calls),
        st.builds(lambda text: {"role": "tool", "tool_call_id": "a", "content": text}, _texts),
    ),
    max_size=5,
)  # fmt: skip
_nothing = st.dictionaries(
    st.sampled_from(["name", "audio", "refusal", "annotations", "function_call", "anything"]),
    st.sampled_from(_EMPTY_VALUES),
    max_size=3,
)


@given(_messages, st.lists(_nothing, min_size=5, max_size=5))
def test_empty_members_say_nothing_and_what_was_read_is_read_the_same(
    messages: list[dict[str, Any]], nothing: list[dict[str, Any]]
) -> None:
    padded = [{**message, **more} for message, more in zip(messages, nothing, strict=False)]
    assert read_messages(padded) == messages
    assert read_messages(read_messages(padded)) == messages


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=3))
def test_arguments_as_an_object_are_their_text(arguments: dict[str, Any]) -> None:
    text = arguments_text(arguments)
    assert text is not None
    assert json.loads(text) == arguments
    assert arguments_text(text) == text


BAD: list[tuple[Any, str]] = [
    ({"role": "assistant", "tool_calls": [{}]}, "message 1: a tool call needs function.name"),
    ({"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": 5}}]}, "message 1: a tool call"),
    ({"role": "assistant", "function_call": "auto"}, "message 1: a tool call needs function.name"),
    ({"role": "function", "name": "now", "content": "noon"}, "message 1: no function_call before it"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "fault"), BAD)
def test_what_cannot_be_read_is_named(message: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_messages([USER, message])
    with pytest.raises(BadRequestBody, match=f"messages: {fault}"):
        canonical({"messages": [USER, message]}, None)


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_a_message_that_is_to_be_continued_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"message 1: {name} is not supported"):
        EngineChatRequest.model_validate({"model": "m", "messages": [USER, {**SAYS, name: True}]})
    assert EngineChatRequest.model_validate({"model": "m", "messages": [USER, {**SAYS, name: False}, USER]}).messages


_NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        *((word, word) for word in ("none", "auto", "required")),
        ("any", "required"),
        ({"type": "any"}, "required"),
        ({"type": "auto"}, "auto"),
        (_NAMED, _NAMED),
        ({"type": "function", "name": "now"}, _NAMED),
        ({"type": "tool", "name": "now"}, _NAMED),
        (None, None),
    ],
)
def test_a_choice_of_tools_in_any_vendors_form(choice: Any, read: Any) -> None:
    assert read_tool_choice(choice) == read
    assert (
        EngineChatRequest.model_validate(
            {"model": "m", "messages": [USER], "tools": TOOLS, "tool_choice": choice}
        ).tool_choice
        == read
    )
    assert (
        canonical({"messages": [USER], "tools": TOOLS, "tool_choice": choice}, None).parameters.get("tool_choice")
        == read
    )


_SCHEMA = {"type": "object", "properties": {"day": {"type": "string"}}}


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        ({"type": "json_object"}, None),
        ({"type": "json_object", "schema": None}, None),
        ({"type": "json_object", "schema": _SCHEMA}, _SCHEMA),
        ({"type": "json_object", "schema": _SCHEMA, "strict": True}, _SCHEMA),
        ({"type": "json_object", "json_schema": {"name": "d", "schema": _SCHEMA}}, _SCHEMA),
        ({"type": "json_schema", "schema": _SCHEMA}, _SCHEMA),
        ({"type": "json_schema", "name": "d", "schema": _SCHEMA}, _SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "d", "description": "A day.", "schema": _SCHEMA}}, _SCHEMA),
    ],
)
def test_a_schema_is_found_wherever_servers_take_it(response_format: Any, schema: Any) -> None:
    reading = EngineChatRequest.model_validate(
        {"model": "m", "messages": [USER], "response_format": response_format}
    ).response_format
    assert reading is not None
    assert (reading.json_schema and reading.json_schema.schema_) == schema
    assert reading.type == ("json_object" if schema is None else "json_schema")


@pytest.mark.parametrize(
    ("response_format", "named"),
    [
        ({"type": "json_schema"}, "needs json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "d", "strict": True}}, r"json_schema\.schema"),
        ({"type": "json_schema", "json_schema": {"name": "d", "schema": None}}, r"json_schema\.schema"),
        ({"type": "json_object", "value": _SCHEMA}, r"response_format\.value"),
        ({"type": "text", "json_schema": {"name": "d", "schema": _SCHEMA}}, "takes no json_schema"),
        ({"type": "json_object", "schema": "object"}, r"json_schema\.schema"),
    ],
)
def test_a_schema_that_would_be_ignored_is_refused_by_name(response_format: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EngineChatRequest.model_validate({"model": "m", "messages": [USER], "response_format": response_format})
