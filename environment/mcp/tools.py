"""Converts what the tools of an MCP server return, which need not be text, to what a model reads."""

import json
from typing import TYPE_CHECKING

from environment.server_tools import ToolText, failure, readable

if TYPE_CHECKING:
    from mcp import types


def text_of(result: "types.CallToolResult", most: int) -> ToolText:
    """Return what the model reads of a result, in about `most` characters at most."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structuredContent is not None:
        parts = [json.dumps(result.structuredContent, ensure_ascii=False)]
    text = readable("\n".join(parts) or "(no content)", most)
    return failure(text) if result.isError else ToolText(text)


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
