"""Tools of a remote server: how a model is offered them, and what it reads of their results.

Servers can have names that OpenAI's API refuses, more tools than it accepts, and results of any length.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from learnloop_service.environment.base import EpisodeFailed, Json, Tool

MAX_TOOLS = 128
"""OpenAI's limit on the number of tools."""
_MAX_NAME = 64
_MAX_DESCRIPTION = 1_024
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_CHOICES = ("anyOf", "oneOf", "allOf")
_NOTHING = object()
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class ToolText:
    """What the model reads about a tool call, and whether the call failed."""

    text: str
    failed: bool = False


def failure(message: str) -> ToolText:
    """Return what the model reads about a failed call."""
    return ToolText(f"Error: {message}", failed=True)


def readable(text: str, most: int) -> str:
    """Return about `most` characters of the text, without characters that cannot be sent or stored."""
    # Lone surrogates are valid JSON but cannot be encoded.
    text = text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= most else f"{text[:most]}\n[cut: {most:,} of {len(text):,} characters]"


def offered(tools: Sequence[Tool], allowed: Sequence[str] | None, server: str) -> Mapping[str, tuple[str, Tool]]:
    """Return the server's name of each tool and the tool, by the name that the model uses. `server` says whose tools
    they are, in errors. Raises EpisodeFailed."""
    if allowed is not None:
        if missing := set(allowed) - {tool.name for tool in tools}:
            raise EpisodeFailed(
                f"{server} has no tool {', '.join(sorted(missing))}; it has: {', '.join(tool.name for tool in tools)}"
            )
        tools = [tool for tool in tools if tool.name in allowed]
    if len(tools) > MAX_TOOLS:
        raise EpisodeFailed(
            f"{server} has {len(tools)} tools, and models take at most {MAX_TOOLS}: choose some by allow_tools"
        )
    by_name: dict[str, tuple[str, Tool]] = {}
    for tool in tools:
        name = _name(tool.name, by_name)
        fitting = replace(tool, name=name, description=tool.description[:_MAX_DESCRIPTION], parameters=_schema(tool))
        by_name[name] = (tool.name, fitting)
    return by_name


def _name(server_name: str, names: Mapping[str, object]) -> str:
    """Return the tool's name if OpenAI's API allows it; otherwise a similar unique one, the same in each session."""
    name = _UNFIT.sub("_", server_name)
    if len(name) <= _MAX_NAME and name not in names and name:
        return name
    digest = hashlib.sha256(server_name.encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9]}_{digest}"


def _schema(tool: Tool) -> dict[str, Json]:
    """Return the server's schema as one of an object with named arguments, which models' APIs require, and without
    invalid parts."""
    schema = dict(_sound(tool.parameters))
    for section in ("$defs", "definitions"):
        target = schema.get(section, {}).get(str(schema.get("$ref")).removeprefix(f"#/{section}/"))
        schema = {**target, **schema} if isinstance(target, dict) else schema
    if "object" not in schema.get("type", "object"):
        schema = {}
    choices = [choice for key in _CHOICES for choice in schema.get(key, ()) if isinstance(choice, dict)]
    arguments = {name: argument for choice in choices for name, argument in choice.get("properties", {}).items()}
    rest = {key: value for key, value in schema.items() if key not in (*_CHOICES, "$ref", "not", "enum")}
    return {**rest, "type": "object", "properties": {**arguments, **schema.get("properties", {})}}


def _sound(schema: Json) -> Json:
    """Return a schema without the parts that have no meaning in one."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        return {}
    sound = {key: value for key, part in schema.items() if (value := _sound_part(key, part)) is not _NOTHING}
    return sound if sound.get("type") != "array" else {"items": {}, **sound}


def _sound_part(key: str, value: Json) -> Json:
    sound: Json = value
    if key == "type":
        kinds = [str(kind).lower() for kind in (value if isinstance(value, list) else [value])]
        kinds = [kind for kind in kinds if kind in _TYPES]
        sound = kinds if isinstance(value, list) else "".join(kinds)
    elif key in ("properties", "$defs", "definitions", "patternProperties"):
        return {name: _sound(child) for name, child in value.items()} if isinstance(value, dict) else _NOTHING
    elif key in ("items", "additionalProperties", "not"):
        return _sound(value) if isinstance(value, dict | bool) else _NOTHING
    elif key in _CHOICES:
        sound = list(map(_sound, value)) if isinstance(value, list) else []
    elif key in ("required", "enum"):
        sound = (
            [element for element in value if key == "enum" or isinstance(element, str)]
            if isinstance(value, list)
            else []
        )
        return sound if sound or (key, value) == ("required", []) else _NOTHING
    else:
        return value
    return sound or _NOTHING
