"""Demonstrations that went through Arrow, which has a null for every field that another row has."""

import json

from learnloop_service.app.datasets.demonstrations import read_demonstrations
from learnloop_service.app.operations.start.base_model_warnings import temperature_warnings
from learnloop_service.app.schemas.run_request import LearnLoopRequest


def test_nulls_are_dropped_in_parameters_and_arguments() -> None:
    schema = {
        "type": "object",
        "enum": None,
        "properties": {"words": {"type": "array", "enum": ["a", None], "items": None}, "limit": None},
    }
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "search", "arguments": {"words": [{"a": None}], "n": None}},
    }
    line = {
        "messages": [
            {"role": "user", "content": "Where?", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "tools": [{"type": "function", "function": {"name": "search", "strict": None, "parameters": schema}}],
    }
    [demonstration] = read_demonstrations(json.dumps(line).encode())
    assert json.loads(demonstration["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"words": [{}]}
    assert demonstration["tools"][0]["function"] == {
        "name": "search",
        "parameters": {"type": "object", "properties": {"words": {"type": "array", "enum": ["a", None]}}},
    }


def test_arguments_that_are_text_stay_as_written() -> None:
    text = '{"limit":  null}'
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": text}}
    line = {
        "messages": [{"role": "assistant", "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "search"}}],
    }
    [demonstration] = read_demonstrations(json.dumps(line).encode())
    assert demonstration["messages"][0]["tool_calls"][0]["function"]["arguments"] == text


def test_another_temperature_warns() -> None:
    assert temperature_warnings(LearnLoopRequest()) == []
    [warning] = temperature_warnings(LearnLoopRequest(temperature=0.5))
    assert "temperature of 0.5" in warning
