"""Renders tools as plain text for chat templates without tool support, which would silently leave them out."""

import json
from collections.abc import Mapping, Sequence

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.tool_formats.formats import ToolFormat
from learnloop_service.training.protocol.tool_formats.written_calls import WrittenCall

_EXAMPLE = WrittenCall("TOOL", '{"ARGUMENT": "VALUE"}')


def with_tools_as_text(
    messages: Sequence[Mapping[str, Json]],
    tools: Sequence[Mapping[str, Json]],
    tool_format: ToolFormat,
    *,
    system_role: bool,
) -> list[dict[str, Json]]:
    """Return the conversation with tools, calls and results as text. Without a `system_role`, the user message
    introduces the tools."""
    plain: list[dict[str, Json]] = []
    for message in messages:
        role, content = _as_text(message, tool_format)
        # Many templates require user and assistant to alternate.
        if plain and role == plain[-1]["role"] == "user":
            plain[-1]["content"] += f"\n{content}"
        else:
            plain.append({"role": role, "content": content})
    return _introduced(plain, _listed(tools, tool_format), system_role) if tools else plain


def _introduced(messages: list[dict[str, Json]], tools: str, system_role: bool) -> list[dict[str, Json]]:
    first = messages[0] if messages else None
    if first is not None and (first["role"] == "system" or (not system_role and first["role"] == "user")):
        return [{**first, "content": f"{first['content']}\n{tools}".strip()}, *messages[1:]]
    return [{"role": "system" if system_role else "user", "content": tools}, *messages]


def _as_text(message: Mapping[str, Json], tool_format: ToolFormat) -> tuple[str, str]:
    if message["role"] == "tool":
        return "user", f"<tool_response>\n{message['content']}\n</tool_response>"
    calls = [_call(call["function"]) for call in message.get("tool_calls") or []]
    parts = [message["content"], tool_format.write(calls) if calls else ""]
    return message["role"], "\n".join(filter(None, parts))


def _call(function: Mapping[str, Json]) -> WrittenCall:
    arguments = function["arguments"]
    return WrittenCall(
        function["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )


def _listed(tools: Sequence[Mapping[str, Json]], tool_format: ToolFormat) -> str:
    """List the tools as our own template does, because a JSON schema takes seven times as many tokens as a
    signature."""
    signatures = (_signature(tool.get("function", tool)) for tool in tools)
    return "\n".join(["Tools:", *signatures, "To call a tool, write:", tool_format.write([_EXAMPLE])])


def _signature(function: Mapping[str, Json]) -> str:
    schema = function.get("parameters") or {}
    required = schema.get("required", [])
    parameters = [
        f"{name}{'' if name in required else '?'}" + _type(value)
        for name, value in (schema.get("properties") or {}).items()
    ]
    described = (function.get("description") or "").partition("\n")[0]
    return f"{function['name']}({', '.join(parameters)})" + (f" - {described}" if described else "")


def _type(schema: Json) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return f": {kind}" if isinstance(kind, str) else ""
