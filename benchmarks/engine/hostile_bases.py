"""Use base models that are made to stop the engine, and measure how others are answered meanwhile.

    python -m benchmarks.engine.hostile_bases [NAME ...]

For each base an engine with two bases, it and the tiny one, gets eight requests for the hostile one, and requests for
the tiny one for as long as they are handled, at most 180 s. Prints the hostile requests' status and duration, and the
number, the slowest and the failures of the others.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from tests.fakes.engine_process import EngineProcess
from tests.fakes.hostile_bases import HOSTILE, hostile_base, later_hostile_base

_HOSTILE_REQUESTS = 8
_WINDOW_S = 180.0
_CASES = [*(name for name in HOSTILE if "link" not in name), "loop", "text"]
"""The last two are messages for a template that is harmless until it gets one of them."""


async def _ask(http: httpx.AsyncClient, model: str, content: str) -> str:
    messages = [{"role": "user", "content": content}]
    try:
        reply = await http.post("/chat/completions", json={"model": model, "messages": messages, "max_tokens": 8})
    except httpx.HTTPError as error:
        return type(error).__name__
    return str(reply.status_code)


async def _timed(call: Callable[[], Awaitable[str]]) -> tuple[str, float]:
    began = time.perf_counter()
    return await call(), time.perf_counter() - began


async def _measure(http: httpx.AsyncClient, name: str) -> None:
    await _ask(http, "learnloop/tiny", "hello")  # loads the model
    content = name if name in ("loop", "text") else "hello"
    hostile = [asyncio.create_task(_timed(lambda: _ask(http, "hostile", content))) for _ in range(_HOSTILE_REQUESTS)]
    until, others = time.perf_counter() + _WINDOW_S, []
    while not all(task.done() for task in hostile) and time.perf_counter() < until:
        others.append(await _timed(lambda: _ask(http, "learnloop/tiny", "hello")))
    ended = [task.result() for task in hostile if task.done()]
    for task in hostile:
        task.cancel()
    statuses = ", ".join(sorted({status for status, _ in ended})) or "none"
    failed = sum(status != "200" for status, _ in others)
    print(
        f"{name:<26} {len(ended)} of {_HOSTILE_REQUESTS} ended ({statuses}), "
        f"the last after {max((seconds for _, seconds in ended), default=float('inf')):5.1f} s; "
        f"{len(others):4} others, {failed} failed, slowest {max(seconds for _, seconds in others):5.2f} s",
        flush=True,
    )


async def _case(folder: Path, name: str) -> None:
    later = name in ("loop", "text")
    base = later_hostile_base(folder / "base") if later else hostile_base(folder / "base", name)
    with EngineProcess(folder / "engine", "--base-model", f"hostile={base}") as engine:
        try:
            async with httpx.AsyncClient(base_url=engine.base_url, timeout=_WINDOW_S) as http:
                await _measure(http, name)
        finally:
            engine.stop(9)


def main() -> int:
    for name in sys.argv[1:] or _CASES:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_case(Path(folder), name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
