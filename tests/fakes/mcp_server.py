"""An MCP server with well-behaved and bad tools, over stdio: `python -m tests.fakes.mcp_server`."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
NESTED = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": ["string", "null"]}}}},
    "type": "object",
    "properties": {"where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "array", "items": {"enum": ["x", 1]}}]}},
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object"}
HUGE = 100_000
TOOLS = {
    "add": NUMBERS,
    "count": NOTHING,
    "environ": {"type": "object", "properties": {"name": {"type": "string"}}},
    "fail": NOTHING,
    "nested.look/up": NESTED,
    "nested_look_up": NESTED,
    "picture": NOTHING,
    "huge": NOTHING,
    "slow": NOTHING,
    "hang": NOTHING,
    "die": NOTHING,
    "flood": NOTHING,
    "child": NOTHING,
}
BANNER = "a banner where only messages may be"


def make_server() -> Server[Any, Any]:
    """Return the server. Its `count` is shared by all of its sessions."""
    server: Server[Any, Any] = Server("bad")
    calls = 0

    @server.list_tools()  # type: ignore[no-untyped-call,untyped-decorator]
    async def tools() -> list[types.Tool]:
        return [types.Tool(name=name, description=name * 300, inputSchema=schema) for name, schema in TOOLS.items()]

    @server.call_tool()  # type: ignore[untyped-decorator]
    async def call(name: str, arguments: dict[str, Any]) -> list[types.ContentBlock]:
        nonlocal calls
        calls += 1
        match name:
            case "add":
                return [_text(str(arguments["a"] + arguments["b"]))]
            case "count":
                Path(f"call-{calls}").touch()
                return [_text(f"call {calls}, files {len(list(Path.cwd().iterdir()))}")]
            case "environ":
                return [_text(os.environ.get(arguments["name"], "not set"))]
            case "picture":
                return [_text("here:"), types.ImageContent(type="image", data="AAAA" * 100, mimeType="image/png")]
            case "huge":
                return [_text("x" * HUGE)]
            case "slow":
                await anyio.sleep_forever()
            case "hang":
                signal.pause()
            case "die":
                sys.stderr.write("out of luck\n")
                sys.stderr.flush()
                os._exit(3)
            case "flood":
                while True:
                    os.write(1, b"x" * 65_536)
            case "child":
                if (pid := os.fork()) == 0:
                    signal.pause()
                return [_text(str(pid))]
        raise ValueError(f"{name} went wrong")

    return server


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


async def over_stdio() -> None:
    os.write(1, f"{BANNER}\n".encode())
    async with stdio_server() as (reader, writer):
        server = make_server()
        await server.run(reader, writer, server.create_initialization_options())


@asynccontextmanager
async def over_http(host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Run a server over streamable HTTP in this process, and yield its URL. `/moved` redirects to it."""
    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.responses import RedirectResponse
    from starlette.routing import Mount, Route

    manager = StreamableHTTPSessionManager(make_server())
    moved = Route("/moved", lambda _: RedirectResponse("/mcp/", 307), methods=["GET", "POST"])
    app = Starlette(routes=[moved, Mount("/mcp", manager.handle_request)])
    with socket(AF_INET, SOCK_STREAM) as listening:
        listening.bind((host, 0))
        serving = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
        async with manager.run(), anyio.create_task_group() as tasks:
            tasks.start_soon(serving.serve, [listening])
            while not serving.started:
                await anyio.sleep(0.01)
            yield f"http://{host}:{listening.getsockname()[1]}"
            serving.should_exit = True


if __name__ == "__main__":
    anyio.run(over_stdio)
