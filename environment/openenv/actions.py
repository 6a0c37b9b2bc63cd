"""The actions of an OpenEnv server as tools that a model calls, and its observations as text that a model reads.

Some servers have tools themselves (those of an MCP server behind them), which are listed and called by actions. Any
other has one kind of action, whose JSON schema it tells: that is one tool.
"""

import json
from collections.abc import Mapping, Sequence

from environment.base import EpisodeFailed, Json, Tool
from environment.openenv.connection import Observation
from environment.server_tools import ToolText, failure, readable

ACT = "act"
"""The name of the tool for servers that have one kind of action."""
LIST_TOOLS: Mapping[str, Json] = {"type": "list_tools"}
NOTHING = "(nothing observed)"
_ANY_SERVERS = "metadata"
"""What actions and observations of all servers have, and what is not for models."""


def has_tools(schema: Mapping[str, Json]) -> bool:
    """Whether a server with this schema of actions has tools: then it takes calls of them, or says nothing of what it
    takes."""
    properties = set(schema.get("properties", {})) - {_ANY_SERVERS}
    return not properties or {"type", "tool_name", "arguments"} <= properties


def action_tool(schema: Mapping[str, Json]) -> Tool:
    """The one tool of a server whose actions have this schema."""
    properties = {name: value for name, value in schema["properties"].items() if name != _ANY_SERVERS}
    required = [name for name in schema.get("required", ()) if name in properties]
    kept = {name: schema[name] for name in ("$defs", "additionalProperties") if name in schema}
    parameters = {"type": "object", "properties": properties, "required": required, **kept}
    return Tool(ACT, str(schema.get("description") or "Act in the environment."), parameters)


def listed_tools(observation: Observation) -> list[Tool]:
    """The tools in the answer to LIST_TOOLS. Raises EpisodeFailed."""
    try:
        return [
            Tool(str(each["name"]), str(each.get("description") or ""), dict(each["input_schema"]))
            for each in observation.content["tools"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EpisodeFailed("the OpenEnv server did not list its tools") from error


def call_action(name: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The action that calls a tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


def text_of(observation: Observation, most: int) -> ToolText:
    """What the model reads, in about that many characters: of a tool's result its content, of anything else its fields
    (the text alone, where there is just one and it is a text)."""
    shown = {name: value for name, value in observation.content.items() if name != _ANY_SERVERS}
    if not shown:
        return ToolText(NOTHING)
    if "tool_name" in shown and (error := shown.get("error")):
        return failure(readable(str(error.get("message", error) if isinstance(error, dict) else error), most))
    if "tool_name" in shown and "result" in shown:
        result = shown["result"]
        failed = isinstance(result, dict) and bool(result.get("is_error"))
        text = readable(_result(result), most)
        return failure(text) if failed else ToolText(text)
    return ToolText(readable(_text(next(iter(shown.values()))) if len(shown) == 1 else _text(shown), most))


def _result(result: Json) -> str:
    """The text of a tool's result, as FastMCP has it; anything else as JSON."""
    if isinstance(result, dict) and isinstance(blocks := result.get("content"), Sequence):
        texts = [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
        if texts:
            return "\n".join(texts)
    return _text(result)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
