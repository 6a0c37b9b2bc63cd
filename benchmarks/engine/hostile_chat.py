"""Send chat requests designed to block the engine, and measure how long others wait meanwhile.

    python -m benchmarks.engine.hostile_chat [NAME ...]

Starts an engine with the tiny base on this machine. Prints for each request its status, its duration, and the slowest
`GET /health` while it was handled.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from environment.json_type import Json
from tests.fakes.engine_process import EngineProcess

_USER = {"role": "user", "content": "hello"}


def _body(**fields: Json) -> bytes:
    return json.dumps({"model": "learnloop/tiny", "messages": [_USER], "max_tokens": 1, **fields}).encode()


def _tool(name: str, properties: int = 1) -> Json:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(properties)}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def _format(schema: Json) -> bytes:
    return _body(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    )


REQUESTS: dict[str, Callable[[], bytes]] = {
    "small": _body,
    "messages": lambda: _body(messages=[_USER] * 100_000),
    "text": lambda: _body(messages=[{"role": "user", "content": "so long, " * 100_000}]),
    "parts": lambda: _body(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]),
    "tools": lambda: _body(tools=[_tool(f"t{number}") for number in range(100_000)]),
    "keys": lambda: _body(tools=[_tool("t", 100_000)]),
    "schema": lambda: _format({"type": "integer", "multipleOf": 9_999_991}),
    "properties": lambda: _format(_tool("x", 5_000)["function"]["parameters"]),
}


async def _slowest_health(http: httpx.AsyncClient, until: "asyncio.Task[httpx.Response]") -> float:
    slowest = 0.0
    while not until.done():
        began = time.perf_counter()
        await http.get("/health")
        slowest = max(slowest, time.perf_counter() - began)
        await asyncio.sleep(0.01)
    return slowest


async def _measure(url: str, names: list[str]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        await http.post("/v1/chat/completions", content=_body())  # loads the model
        for name in names:
            content = REQUESTS[name]()
            began = time.perf_counter()
            request = asyncio.create_task(http.post("/v1/chat/completions", content=content))
            slowest = await _slowest_health(http, request)
            took, reply = time.perf_counter() - began, request.result()
            said = "" if reply.is_success else reply.json()["error"]["message"][:90]
            print(
                f"{name:<11} {len(content) / 1e6:6.2f} MB  {reply.status_code}  {took:7.2f} s  "
                f"others waited {1000 * slowest:6.0f} ms  {said}"
            )


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, EngineProcess(Path(folder)) as engine:
        asyncio.run(_measure(engine.base_url.removesuffix("/v1"), sys.argv[1:] or list(REQUESTS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
