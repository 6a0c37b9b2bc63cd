"""Measure how long another client waits while the engine samples under schemas that are slow to enforce.

    python -m benchmarks.engine.slow_schemas [CASE ...]

Starts an engine with the tiny base on this machine for each case. The other client requests one reply of 16 tokens
after another; every fourth is a small JSON object. It stops when the case's own requests have ended, or after 60 s and
the reply in progress. The cases named `cheap` are the baseline: replies of the same length under a schema that costs
little.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from environment.json_type import Json
from tests.fakes.engine_process import EngineProcess

MEASURED_S = 60.0
TIMEOUT_S = 300.0
_CHEAP: Json = {"type": "string", "minLength": 5000}
_WEATHER: Json = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}


def _body(**fields: Json) -> Json:
    return {"model": "learnloop/tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 400, **fields}


def _format(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def _constant(size: int) -> Json:
    return _body(response_format=_format({"const": "ab" * (size // 2)}))


def _pattern(pattern: str) -> Json:
    return _body(response_format=_format({"type": "string", "pattern": pattern}))


def _tool(size: int) -> Json:
    schema = {"type": "object", "properties": {"a": {"const": "ab" * (size // 2)}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "get", "strict": True, "parameters": schema}}
    return _body(tools=[tool], tool_choice="required")


_UNLIKE: Json = {
    "$ref": "#/$defs/t",
    "$defs": {
        "t": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": size} for size in range(1, 60)]}
    },
}
"""An ambiguous schema: a text can be parsed in many ways, and the engine follows all of them."""

CASES: dict[str, Callable[[], Sequence[Json]]] = {
    "cheap": lambda: [_body(response_format=_format(_CHEAP))] * 8,
    "cheap n64": lambda: [_body(response_format=_format(_CHEAP), n=64)],
    "const 500 kB": lambda: [_constant(500_000)] * 8,
    "const 500 kB n64": lambda: [_constant(500_000) | {"n": 64}],
    "const 100 kB": lambda: [_constant(100_000)] * 8,
    "const 50 kB": lambda: [_constant(50_000)] * 8,
    "const 50 kB n64": lambda: [_constant(50_000) | {"n": 64}],
    "pattern 500 kB": lambda: [_pattern(f"^{'ab' * 250_000}$")] * 8,
    "pattern a{100000}": lambda: [_pattern("^a{100000}$")] * 8,
    "pattern a{100000} n64": lambda: [_pattern("^a{100000}$") | {"n": 64}],
    "pattern a{50000} n64": lambda: [_pattern("^a{50000}$") | {"n": 64}],
    "tool call 500 kB": lambda: [_tool(500_000)] * 8,
    "ambiguous": lambda: [_body(response_format=_format(_UNLIKE))] * 8,
    "ambiguous n64": lambda: [_body(response_format=_format(_UNLIKE), n=64)],
}


async def _ask(http: httpx.AsyncClient, body: Json) -> str:
    """Return the reply's status, with the error code if it has one."""
    try:
        reply = await http.post("/v1/chat/completions", json=body)
    except httpx.TimeoutException:
        return "timeout"
    return str(reply.status_code) if reply.is_success else f"{reply.status_code} {reply.json()['error']['code']}"


async def _measure(http: httpx.AsyncClient, hostile: Sequence[Json]) -> str:
    await _ask(http, _body(max_tokens=4))  # loads the model
    await _ask(http, _body(max_tokens=4, response_format=_format(_WEATHER)))
    began = time.perf_counter()
    requests = [asyncio.create_task(_ask(http, body)) for body in hostile]
    waits: list[float] = []
    while not all(each.done() for each in requests) and time.perf_counter() - began < MEASURED_S:
        asked = time.perf_counter()
        wanted = {"response_format": _format(_WEATHER)} if len(waits) % 4 == 3 else {}
        await _ask(http, _body(max_tokens=16, **wanted))
        waits.append(time.perf_counter() - asked)
        await asyncio.sleep(0.02)
    measured = time.perf_counter() - began
    said = f"{len(waits):4} replies, longest wait {max(waits):7.2f} s, median {statistics.median(waits):6.3f} s"
    ended = Counter(each.result() if each.done() else "not ended" for each in requests)
    for each in requests:
        each.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    return f"{said}; after {measured:.1f} s its requests: {', '.join(f'{ended[what]} x {what}' for what in ended)}"


async def _case(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder, EngineProcess(Path(folder)) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url.removesuffix("/v1"), timeout=TIMEOUT_S) as http:
            print(f"{name:<22} {await _measure(http, CASES[name]())}", flush=True)


def main() -> int:
    for name in sys.argv[1:] or CASES:
        asyncio.run(_case(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
