"""Tools of a remote server: how a model is offered them, and what it reads of their results.

Servers can have names that OpenAI's API refuses, more tools than it accepts, and results of any length.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from environment.base import EpisodeFailed, Tool

MAX_TOOLS = 128
"""OpenAI's limit on the number of tools."""
_MAX_NAME = 64
_MAX_DESCRIPTION = 1_024
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
    found: dict[str, tuple[str, Tool]] = {}
    for tool in tools:
        name = _name(tool.name, found)
        fitting = replace(tool, name=name, description=tool.description[:_MAX_DESCRIPTION], parameters=_schema(tool))
        found[name] = (tool.name, fitting)
    return found


def _name(given: str, taken: Mapping[str, object]) -> str:
    """Return the tool's name if OpenAI's API allows it; otherwise a similar unique one, the same in each session."""
    name = _UNFIT.sub("_", given)
    if len(name) <= _MAX_NAME and name not in taken and name:
        return name
    digest = hashlib.sha256(given.encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9]}_{digest}"


def _schema(tool: Tool) -> dict[str, object]:
    """Return the server's schema with an explicit, possibly empty list of arguments, which OpenAI's API requires."""
    return {"type": "object", "properties": {}, **tool.parameters}
