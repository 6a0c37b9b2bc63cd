"""The schemas of servers' tools: models' APIs take what is offered, and sound ones stay as they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Tool
from learnloop_service.environment.server_tools import offered
from learnloop_service.training.engine.http.chat_request import _checked_tools
from tests.fakes.mcp_server import NESTED


def parameters(schema: Any) -> Any:
    [(_, tool)] = offered([Tool("look", "", schema)], None, "the server").values()
    return tool.parameters


@pytest.mark.parametrize(
    "schema",
    [
        NESTED,
        {"type": "object", "properties": {"a": {"type": ["string", "null"], "default": None, "enum": ["x", None]}}},
        {"type": "object", "properties": {"a": True}, "required": [], "additionalProperties": False, "x-note": [1]},
        {"type": "object", "properties": {"type": {"type": "string"}, "required": {"type": "boolean"}}},
    ],
)
def test_a_sound_schema_stays_as_it_is(schema: Any) -> None:
    assert parameters(schema) == schema


@pytest.mark.parametrize(
    ("schema", "offered_names"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"q": {}}, "required": ["q"]}}}, {"q"}),
        ({"$ref": "#/definitions/A", "definitions": {"A": {"properties": {"q": {}}}}}, {"q"}),
        (
            {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}, 7], "properties": {"c": {}}},
            {"a", "b", "c"},
        ),
        ({"type": ["object", "null"], "properties": {"q": {"type": "text"}}}, {"q"}),
        ({"type": "string"}, set()),
        ({"$ref": "#/$defs/none"}, set()),
    ],
)
def test_arguments_are_found_where_servers_put_them(schema: Any, offered_names: set[str]) -> None:
    schema_offered = parameters(schema)
    assert set(schema_offered["properties"]) == offered_names
    assert not {"anyOf", "oneOf", "allOf", "$ref", "not", "enum"} & schema_offered.keys()


_KEYS = (
    "type",
    "properties",
    "items",
    "required",
    "enum",
    "anyOf",
    "allOf",
    "not",
    "$defs",
    "$ref",
    "additionalProperties",
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "array", "string", "#/$defs/type", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(_KEYS), _json))
def test_the_engine_takes_whatever_a_server_says(schema: dict[str, Any]) -> None:
    schema_offered = parameters(schema)
    _checked_tools([{"type": "function", "function": {"name": "look", "parameters": schema_offered}}])
    assert parameters(schema_offered) == schema_offered
