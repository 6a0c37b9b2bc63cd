"""Answers of MCP servers at a URL."""

import json
from typing import Any

from tests.fakes.hostile_provider import Answer, saying

INITIALIZED = {
    "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}
}  # fmt: skip


def _result(id: int, result: Any, **headers: Any) -> Answer:
    return saying(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode(), **headers)


NAMES_ITS_TOOLS = (
    _result(0, INITIALIZED, mcp_session_id="s1"),
    saying(b"", 202),
    _result(1, {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}),
)
"""What a server answers to the first three messages of a session."""
