"""Converts what an MCP server says of its tools, and what these return, to what a model reads.

Nothing is taken for granted: servers omit fields, add kinds of content, and promise schemas that they do not keep.
"""

import json
from collections.abc import Mapping, Sequence

from learnloop_service.environment.base import Tool
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.server_tools import ToolText, failure, readable

_LONG = 500
"""Most characters of a text within content of an unknown kind."""


def tool_of(listed: Json) -> Tool | None:
    """Return a tool of the server's list; None if it has no name to call it by."""
    if not isinstance(listed, dict) or not isinstance(listed.get("name"), str) or not listed["name"]:
        return None
    description, schema = listed.get("description"), listed.get("inputSchema")
    text = description if isinstance(description, str) else ""
    return Tool(listed["name"], text, schema if isinstance(schema, dict) else {})


def text_of(result: Mapping[str, Json], most: int) -> ToolText:
    """Return what the model reads of a result, in about `most` characters at most."""
    content, structured = result.get("content"), result.get("structuredContent")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    parts = [_part(block) for block in blocks]
    if structured is not None and not _says(parts, structured):
        parts.append(_json(structured))
    if not parts and (other := {key: value for key, value in result.items() if key not in _KNOWN}):
        parts.append(_json(other))
    text = readable("\n".join(parts) or "(no content)", most)
    return failure(text) if result.get("isError") is True else ToolText(text)


_KNOWN = ("_meta", "content", "structuredContent", "isError")


def _says(parts: Sequence[str], structured: Json) -> bool:
    """Return whether the text already has the structured content, as the protocol recommends."""
    values = [structured]
    if isinstance(structured, dict) and list(structured) == ["result"]:  # The SDK wraps what is not an object.
        values.append(structured["result"])
    parsed = [_parsed(part) for part in parts]
    return any(value in (parsed, *parsed, *parts, _parsed("\n".join(parts))) for value in values)


def _parsed(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _part(block: Json) -> str:
    if not isinstance(block, dict):
        return block if isinstance(block, str) else _json(block)
    kind = block.get("type")
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if kind in ("image", "audio"):
        return f"[{block.get('mimeType', kind)}, {_size(block.get('data'))}: not shown]"
    if kind == "resource_link":
        return f"[{block.get('name', 'link')}: {block.get('uri')}]"
    if kind == "resource" and isinstance(resource := block.get("resource"), dict):
        if isinstance(resource.get("text"), str) and resource["text"]:
            return str(resource["text"])
        return (
            f"[{resource.get('uri')}, {resource.get('mimeType') or 'binary'}, {_size(resource.get('blob'))}: not shown]"
        )
    texts = {key: value for key, value in block.items() if isinstance(value, str) and len(value) > _LONG}
    return _json({**block, **{key: f"[{len(text):,} characters: not shown]" for key, text in texts.items()}})


def _size(base64: Json) -> str:
    return f"{len(base64) * 3 // 4 if isinstance(base64, str) else 0:,} bytes"
