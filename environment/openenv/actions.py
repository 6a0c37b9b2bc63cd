"""The actions of an OpenEnv server as tools for a model, and its observations as text.

Some servers offer tools themselves (those of an MCP server behind them), which are listed and called by actions. All
others have one kind of action, described by a JSON schema, which becomes the only tool.
"""

import json
from collections.abc import Mapping, Sequence

from learnloop_service.environment.base import EpisodeFailed, Json, Tool
from learnloop_service.environment.openenv.connection import Observation
from learnloop_service.environment.server_tools import ToolText, failure, readable

ACT = "act"
"""The tool's name for servers with one kind of action."""
LIST_TOOLS: Mapping[str, Json] = {"type": "list_tools"}
NOTHING = "(nothing observed)"
_METADATA = "metadata"
"""A field that actions and observations of all servers have, and that models do not need."""


def has_tools(schema: Mapping[str, Json]) -> bool:
    """Whether a server with this action schema offers tools: it then accepts calls of tools, or declares no fields at
    all."""
    properties = set(schema.get("properties", {})) - {_METADATA}
    return not properties or {"type", "tool_name", "arguments"} <= properties


def action_tool(schema: Mapping[str, Json]) -> Tool:
    """Return the only tool of a server whose actions have this schema."""
    properties = {name: value for name, value in schema["properties"].items() if name != _METADATA}
    required = [name for name in schema.get("required", ()) if name in properties]
    shared = {name: schema[name] for name in ("$defs", "additionalProperties") if name in schema}
    parameters = {"type": "object", "properties": properties, "required": required, **shared}
    return Tool(ACT, str(schema.get("description") or "Act in the environment."), parameters)


def listed_tools(observation: Observation) -> list[Tool]:
    """Return the tools in the answer to LIST_TOOLS. Raises EpisodeFailed."""
    try:
        return [
            Tool(str(tool["name"]), str(tool.get("description") or ""), dict(tool["input_schema"]))
            for tool in observation.content["tools"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EpisodeFailed("the OpenEnv server did not list its tools") from error


def call_action(name: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return the action that calls a tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


def text_of(observation: Observation, most: int) -> ToolText:
    """Return what the model reads, in about `most` characters: the content of a tool's result, or else the
    observation's fields (only the text, if a text is the only field)."""
    fields = {name: value for name, value in observation.content.items() if name != _METADATA}
    if not fields:
        return ToolText(NOTHING)
    if "tool_name" in fields and (error := fields.get("error")):
        return failure(readable(str(error.get("message", error) if isinstance(error, dict) else error), most))
    if "tool_name" in fields and "result" in fields:
        result = fields["result"]
        failed = isinstance(result, dict) and bool(result.get("is_error"))
        text = readable(_result(result), most)
        return failure(text) if failed else ToolText(text)
    return ToolText(readable(_text(next(iter(fields.values()))) if len(fields) == 1 else _text(fields), most))


def _result(result: Json) -> str:
    """Return the text of a tool's result in FastMCP's format; anything else as JSON."""
    if isinstance(result, dict) and isinstance(blocks := result.get("content"), Sequence):
        texts = [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
        if texts:
            return "\n".join(texts)
    return _text(result)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
