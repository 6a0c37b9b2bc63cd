"""Spans of model requests and tool calls, following OpenTelemetry's semantic conventions for generative AI.

https://opentelemetry.io/docs/specs/semconv/gen-ai/ (Development; as of 1.41). One deviation: span names omit the model,
because a model under training has a different name in each run and after each step.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from opentelemetry.trace import SpanKind

from learnloop_service.environment.base import Json
from learnloop_service.environment.trace import INPUT, OUTPUT, Attributes, Span, attributes_of, encoded, recorded

_PARAMETERS = ("temperature", "max_tokens", "seed")


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A chat model's answer, a message in OpenAI's format, and its token usage."""

    message: Mapping[str, Json]
    finish_reason: str | None
    input_tokens: int
    output_tokens: int


def invoke_agent(
    agent: str, *, model: str, rollout_id: str, scenario_id: str, task: Mapping[str, Json]
) -> AbstractContextManager[Span[Json]]:
    """Span of a rollout; the agent is named after its environment."""

    def begun() -> Attributes:
        return attributes_of({"rollout_id": rollout_id, "scenario_id": scenario_id}) | {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": rollout_id,
            "gen_ai.request.model": model,
            INPUT: encoded(task),
        }

    return recorded(f"invoke_agent {agent}", begun, lambda output: {OUTPUT: encoded(output)})


def chat(
    provider: str, *, model: str, messages: Iterable[Mapping[str, Json]], parameters: Mapping[str, Json]
) -> AbstractContextManager[Span[ChatAnswer]]:
    """Span of a request to a chat model; `parameters` are those of OpenAI's API."""

    def begun() -> Attributes:
        settings = {f"gen_ai.request.{name}": parameters[name] for name in _PARAMETERS if name in parameters}
        return settings | {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "gen_ai.input.messages": encoded([_with_parts(message) for message in messages]),
        }

    def ended(reply: ChatAnswer) -> Attributes:
        answer = _with_parts(reply.message) | {"finish_reason": reply.finish_reason}
        return {
            "gen_ai.output.messages": encoded([answer]),
            "gen_ai.response.finish_reasons": [reply.finish_reason or "unknown"],
            "gen_ai.usage.input_tokens": reply.input_tokens,
            "gen_ai.usage.output_tokens": reply.output_tokens,
        }

    return recorded("chat", begun, ended, kind=SpanKind.CLIENT)


def execute_tool(name: str, *, call_id: str, arguments: str) -> AbstractContextManager[Span[str]]:
    """Span of a tool call, with the arguments exactly as the model wrote them."""

    def begun() -> Attributes:
        return {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.call.arguments": arguments,
        }

    return recorded(f"execute_tool {name}", begun, lambda result: {"gen_ai.tool.call.result": result})


def _with_parts(message: Mapping[str, Json]) -> dict[str, Json]:
    """Convert OpenAI's message to the conventions' format."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        return {
            "role": role,
            "parts": [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}],
        }
    parts: list[Json] = [{"type": "text", "content": content}] if content else []
    parts += [
        {
            "type": "tool_call",
            "id": call.get("id"),
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }
        for call in message.get("tool_calls") or ()
        if "function" in call
    ]
    return {"role": role, "parts": parts}
