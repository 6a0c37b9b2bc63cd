"""Tools of a server elsewhere, as a model is offered them, and what it reads of their results.

Servers allow names that OpenAI's API refuses, more tools than it takes, and results of any length.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from environment.base import EpisodeFailed, Tool

MAX_TOOLS = 128
"""OpenAI's limit."""
_MAX_NAME = 64
_MAX_DESCRIPTION = 1_024
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class ToolText:
    """What the model reads of a tool call, and whether it failed."""

    text: str
    failed: bool = False


def failure(message: str) -> ToolText:
    """How the model is told that a call failed."""
    return ToolText(f"Error: {message}", failed=True)


def readable(text: str, most: int) -> str:
    """The text without what cannot be sent on or kept, in about `most` characters."""
    # Lone surrogates are JSON, but nothing that can be encoded.
    text = text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= most else f"{text[:most]}\n[cut: {most:,} of {len(text):,} characters]"


def offered(tools: Sequence[Tool], allowed: Sequence[str] | None, server: str) -> Mapping[str, tuple[str, Tool]]:
    """By the name that the model uses: the server's name, and the tool. `server` says whose tools they are. Raises
    EpisodeFailed."""
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
    """The name itself where it can be; else one like it that no other tool has, the same in each session."""
    name = _UNFIT.sub("_", given)
    if len(name) <= _MAX_NAME and name not in taken and name:
        return name
    digest = hashlib.sha256(given.encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9]}_{digest}"


def _schema(tool: Tool) -> dict[str, object]:
    """The server's schema. Where it lists no arguments it says so: OpenAI's API wants that of each function."""
    return {"type": "object", "properties": {}, **tool.parameters}
