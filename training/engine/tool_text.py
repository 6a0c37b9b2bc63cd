"""Renders tools as plain text for chat templates without tool support, which would silently leave them out."""

import json
from collections.abc import Mapping, Sequence

from environment.json_type import Json

_FORMAT = """To call a tool, write:
<tool_call>
{"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}
</tool_call>"""


def with_tools_as_text(
    messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]], *, system_role: bool
) -> list[dict[str, Json]]:
    """Return the conversation with tools, calls and results as text. Without a `system_role`, the user message
    introduces the tools."""
    plain: list[dict[str, Json]] = []
    for message in messages:
        role, content = _as_text(message)
        # Many templates require user and assistant to alternate.
        if plain and role == plain[-1]["role"] == "user":
            plain[-1]["content"] += f"\n{content}"
        else:
            plain.append({"role": role, "content": content})
    return _introduced(plain, _listed(tools), system_role) if tools else plain


def _introduced(messages: list[dict[str, Json]], tools: str, system_role: bool) -> list[dict[str, Json]]:
    first = messages[0] if messages else None
    if first is not None and (first["role"] == "system" or (not system_role and first["role"] == "user")):
        return [{**first, "content": f"{first['content']}\n{tools}".strip()}, *messages[1:]]
    return [{"role": "system" if system_role else "user", "content": tools}, *messages]


def _as_text(message: Mapping[str, Json]) -> tuple[str, str]:
    if message["role"] == "tool":
        return "user", f"<tool_response>\n{message['content']}\n</tool_response>"
    calls = [_call(call["function"]) for call in message.get("tool_calls") or []]
    return message["role"], "\n".join([*([message["content"]] if message["content"] else []), *calls])


def _call(function: Mapping[str, Json]) -> str:
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {written}}}\n</tool_call>'


def _listed(tools: Sequence[Mapping[str, Json]]) -> str:
    """List the tools as our own template does, because a JSON schema takes seven times as many tokens as a
    signature."""
    return "\n".join(["Tools:", *(_signature(tool.get("function", tool)) for tool in tools), _FORMAT])


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
