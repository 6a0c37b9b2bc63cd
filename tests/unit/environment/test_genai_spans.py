"""What models and tools do, by the semantic conventions: as the client of W&B Weave spells them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from learnloop_service.environment.genai_spans import ChatAnswer, chat, execute_tool, invoke_agent
from learnloop_service.environment.trace import tracing
from tests.fakes.noted_spans import Noted

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "Ü"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Find it."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "[]"},
]


def attributes(noted: Noted, name: str) -> dict[str, Any]:
    """With JSON read."""
    return reading(noted.spans[name].attributes or {})


def reading(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: json.loads(value) if key.endswith(".messages") else value for key, value in attributes.items()}


def test_attributes_are_those_of_weaves_own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    from weave.conversation import conversation_otel as weave
    from weave.conversation.types import Message, TextPart, ToolCallPart, Usage

    noted = Noted()
    with tracing(noted.tracer):
        with invoke_agent("mail", model="m@3", rollout_id="r1", scenario_id="s1", task={"inbox": "x"}) as rollout:
            rollout.output = {"outcome": {}}
        with chat(
            "openai", model="m@3", messages=MESSAGES, parameters={"temperature": 0.5, "max_tokens": 9, "seed": 7}
        ) as turn:
            turn.output = ChatAnswer({"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool_calls", 30, 4)
        with execute_tool("search", call_id="c1", arguments='{"q": "Ü"}') as tool:
            tool.output = "[]"

    call_part = ToolCallPart(id="c1", name="search", arguments='{"q": "Ü"}')
    expected = weave.llm_attributes(
        model="m@3",
        provider_name="openai",
        input_messages=[
            Message(role="system", content="Find it."),
            Message(role="user", content="Where?"),
            Message(role="assistant", parts=[TextPart(content="Let me see."), call_part]),
            Message(role="tool", content="[]", tool_call_id="c1"),
        ],
        output_messages=[Message(role="assistant", parts=[call_part])],
        usage=Usage(input_tokens=30, output_tokens=4),
        finish_reasons=["tool_calls"],
        request_temperature=0.5,
        request_max_tokens=9,
        request_seed=7,
    )
    ours = attributes(noted, "chat")
    # The conventions want it in each output message; Weave's client leaves it out.
    assert ours["gen_ai.output.messages"][0].pop("finish_reason") == "tool_calls"
    ours["gen_ai.response.finish_reasons"] = list(ours["gen_ai.response.finish_reasons"])
    assert ours == reading(expected)

    invoked = weave.invoke_agent_attributes(agent_name="mail", conversation_id="r1", model="m@3")
    more = {"learnloop.rollout_id": "r1", "learnloop.scenario_id": "s1", "input.value": '{"inbox": "x"}'}
    assert attributes(noted, "invoke_agent mail") == invoked | more | {"output.value": '{"outcome": {}}'}
    assert attributes(noted, "execute_tool search") == weave.execute_tool_attributes(
        tool_name="search",
        tool_call_arguments='{"q": "Ü"}',
        tool_call_result="[]",
        tool_call_id="c1",
        tool_type="function",
    )


def test_a_chat_that_fails_has_no_output() -> None:
    noted = Noted()
    with tracing(noted.tracer), pytest.raises(OSError, match="gone"), chat("o", model="m", messages=[], parameters={}):
        raise OSError("gone")
    assert attributes(noted, "chat").keys() == {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.input.messages",
        "error.type",
    }


def test_unexpected_messages_fail_no_request() -> None:
    noted = Noted()
    with tracing(noted.tracer), chat("o", model="m", messages=[{"tool_calls": [1]}], parameters={}) as traced:
        traced.output = ChatAnswer({"content": [{"type": "text", "text": "hi"}]}, None, 0, 0)
    recorded = attributes(noted, "chat")
    assert recorded["learnloop.untraced"] == "TypeError"
    assert recorded["gen_ai.response.finish_reasons"] == ("unknown",)
