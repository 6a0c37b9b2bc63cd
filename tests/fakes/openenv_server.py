"""Good and bad OpenEnv servers, with the protocol of the package `openenv` 0.10: a game, and one with tools."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from websockets.asyncio.server import Server, ServerConnection, serve

from learnloop_service.environment.json_type import Json

if TYPE_CHECKING:
    from websockets.http11 import Request, Response

GUESS: Json = {
    "title": "GuessAction",
    "description": "Guess the number.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "metadata": {"type": "object", "additionalProperties": True},
        "number": {"type": "integer", "description": "Your guess."},
    },
    "required": ["number"],
}
CALL_TOOL: Json = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "type": {"const": "call_tool", "default": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["tool_name"],
}
_GUESSES = 3


@dataclass
class OpenEnvServer:
    """A server's URL, and the requests that it received."""

    action: Json
    capacity: int
    url: str = ""
    episodes: int = 0
    """Number of connected episodes."""
    most: int = 0
    refused: int = 0
    """Number of connections refused because it was full."""
    resets: list[Json] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    async def serve_episode(self, socket: ServerConnection) -> None:
        """Serve an episode on `/ws`."""
        assert socket.request is not None
        self.headers.append(dict(socket.request.headers.raw_items()))
        if self.episodes >= self.capacity:
            self.refused += 1
            await socket.send(_error("the server is full", "CAPACITY_REACHED"))
            return
        self.episodes += 1
        self.most = max(self.most, self.episodes)
        try:
            await self._play(socket)
        finally:
            self.episodes -= 1

    async def _play(self, socket: ServerConnection) -> None:
        secret, guesses_left, fault = 0, 0, None
        async for text in socket:
            message = json.loads(text)
            data = message["data"]
            if message["type"] == "reset":
                self.resets.append(data)
                secret, guesses_left, fault = data.get("seed", 0) % 5, _GUESSES, data.get("fault")
                if fault == "refuse":
                    await socket.send(_error("no such level", "EXECUTION_ERROR"))
                else:
                    await socket.send(_observation({"prompt": "A number from 0 to 4."}, done=fault == "over"))
            elif data.get("type") == "list_tools":
                await socket.send(_observation({"metadata": {}, "tools": _TOOLS}))
            elif data.get("type") == "call_tool":
                await socket.send(_tool(data["tool_name"], data["arguments"]))
            elif not isinstance(data.get("number"), int):
                wrong = [{"loc": ["number"], "msg": "Input should be a valid integer"}]
                await socket.send(_error("Invalid message", "VALIDATION_ERROR", errors=wrong))
            elif fault is not None:
                await _misbehave(socket, fault)
            else:
                guesses_left -= 1
                await socket.send(_guessed(data["number"], secret, guesses_left))

    def schema(self, socket: ServerConnection, request: "Request") -> "Response | None":
        """Answer `/schema`, or return None for a WebSocket on `/ws`."""
        if request.path == "/ws":
            return None
        if request.path == "/moved/ws":
            response = socket.respond(HTTPStatus.TEMPORARY_REDIRECT, "")
            response.headers["Location"] = "/ws"
            return response
        if request.path in ("/schema", "/moved/schema"):
            return socket.respond(HTTPStatus.OK, json.dumps({"action": self.action, "observation": {}, "state": {}}))
        return socket.respond(HTTPStatus.NOT_FOUND, "")


async def _misbehave(socket: ServerConnection, fault: str) -> None:
    match fault:
        case "hang":
            await socket.wait_closed()
        case "leave":
            await socket.close()
        case "nan":
            await socket.send('{"type": "observation", "data": {"observation": {}, "reward": NaN, "done": false}}')
        case "flood":
            await socket.send(_observation({"prompt": "x" * 9_000_000}))
        case "many_values":
            await socket.send("[" + "[]," * 500_000 + "0]")
        case "no_reward":
            await socket.send(_observation({"prompt": "who knows"}, done=True))
        case _:
            await socket.send(fault)


def _guessed(number: int, secret: int, guesses_left: int) -> str:
    hint = "right" if number == secret else "higher" if number < secret else "lower"
    observed = {"metadata": {"secret": secret}, "hint": hint, "left": guesses_left}
    return _observation(observed, reward=1.0 if hint == "right" else -0.25, done=hint == "right" or guesses_left == 0)


def _tool(name: str, arguments: Json) -> str:
    """Return a tool's result as FastMCP serialises it."""
    if name != "add":
        error = {"error_type": "tool_not_found", "message": f"Unknown tool: {name}"}
        return _observation({"metadata": {}, "tool_name": name, "result": None, "error": error})
    total = arguments["a"] + arguments["b"]
    result = {"content": [{"type": "text", "text": str(total)}], "structured_content": {"result": total}, "data": total}
    return _observation({"metadata": {}, "tool_name": name, "result": result, "error": None}, reward=0.5)


_NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
_TOOLS = [
    {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": _NUMBERS}},
    {"name": "gone/away", "description": "Not there any more.", "input_schema": {"type": "object"}},
]


def _observation(observation: Json, *, reward: float | None = None, done: bool = False) -> str:
    return json.dumps({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})


def _error(message: str, code: str, **more: Json) -> str:
    return json.dumps({"type": "error", "data": {"message": message, "code": code, **more}})


@asynccontextmanager
async def openenv_server(action: Json = GUESS, capacity: int = 100) -> AsyncIterator[OpenEnvServer]:
    """Run a server on a free port while the context is open."""
    server = OpenEnvServer(action, capacity)
    running: Server
    async with serve(server.serve_episode, "127.0.0.1", 0, process_request=server.schema) as running:
        port = next(iter(running.sockets)).getsockname()[1]
        server.url = f"http://127.0.0.1:{port}"
        yield server
