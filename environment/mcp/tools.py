"""A server's tools, as a model is offered them, and what they return, as a model reads it.

MCP allows names that OpenAI's API refuses, and results that are no text.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from environment.base import EpisodeFailed, Tool

if TYPE_CHECKING:
    from mcp import types

MAX_TOOLS = 128
"""OpenAI's limit."""
_MAX_NAME = 64
_MAX_DESCRIPTION = 1_024
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


def offered(tools: "Sequence[types.Tool]", allowed: Sequence[str] | None) -> Mapping[str, tuple[str, Tool]]:
    """By the name that the model uses: the server's name, and the tool. Raises EpisodeFailed."""
    if allowed is not None:
        if missing := set(allowed) - {tool.name for tool in tools}:
            raise EpisodeFailed(
                f"the MCP server has no tool {', '.join(sorted(missing))}; it has: "
                f"{', '.join(tool.name for tool in tools)}"
            )
        tools = [tool for tool in tools if tool.name in allowed]
    if len(tools) > MAX_TOOLS:
        raise EpisodeFailed(
            f"the MCP server has {len(tools)} tools, and models take at most {MAX_TOOLS}: choose some by allow_tools"
        )
    found: dict[str, tuple[str, Tool]] = {}
    for tool in tools:
        name = _name(tool.name, found)
        found[name] = (tool.name, Tool(name, (tool.description or "")[:_MAX_DESCRIPTION], _schema(tool.inputSchema)))
    return found


def _name(given: str, taken: Mapping[str, object]) -> str:
    """The name itself where it can be; else one like it that no other tool has, the same in each session."""
    name = _UNFIT.sub("_", given)
    if len(name) <= _MAX_NAME and name not in taken and name:
        return name
    digest = hashlib.sha256(given.encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9]}_{digest}"


def _schema(given: Mapping[str, object]) -> dict[str, object]:
    """The server's schema. Where it lists no arguments it says so: OpenAI's API wants that of each function."""
    return {"type": "object", "properties": {}, **given}


@dataclass(frozen=True, slots=True)
class ToolText:
    """What the model reads of a tool call, and whether it failed."""

    text: str
    failed: bool = False


def text_of(result: "types.CallToolResult", most: int) -> ToolText:
    """What the model reads of a result, in at most about that many characters."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structuredContent is not None:
        parts = [json.dumps(result.structuredContent, ensure_ascii=False)]
    text = "\n".join(parts) or "(no content)"
    # Lone surrogates are JSON, but nothing that can be sent on or kept.
    text = text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return failure(_cut(text, most)) if result.isError else ToolText(_cut(text, most))


def failure(message: str) -> ToolText:
    """How the model is told that a call failed."""
    return ToolText(f"Error: {message}", failed=True)


def _part(block: "types.ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.mimeType}, {_size(block.data)}: not shown]"
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case "resource":
            content = block.resource
            if text := getattr(content, "text", None):
                return str(text)
            return f"[{content.uri}, {content.mimeType or 'binary'}, {_size(getattr(content, 'blob', ''))}: not shown]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4:,} bytes"


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut: {most:,} of {len(text):,} characters]"
