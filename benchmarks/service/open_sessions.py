"""Measure a project that opens sessions and never ends one: its replies, its cost to others, and what is left of it.

    python -m benchmarks.service.open_sessions [--sessions 1000] [--ttl 180]

Uses a service that requires keys, with its own Postgres and a stand-in for the engine. One project opens the allowed
number of sessions and tries one more, then makes one model call in each and abandons them. Meanwhile another project
makes calls in its own session, with pauses of 0.1 s. Ends when the sessions have expired.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.cli.client import Service
from app.cli.service_process import free_port
from benchmarks import processes
from benchmarks.engine.slow_model import slow_model
from environment.json_type import Json

_OPERATOR_KEY = "the-operator-key-of-a-benchmark-0"
_MODEL = "learnloop/tiny"
_REPLY_S = 0.02
_AT_ONCE = 16
_PACE_S = 0.1
_ALONE_S = 10.0
_LOOK_EVERY_S = 1.0


@dataclass
class Neighbour:
    """The other project; records the seconds of its calls by phase."""

    http: httpx.AsyncClient
    headers: dict[str, str]
    phase: str = "alone"
    call_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Make calls until the block ends."""
        task = asyncio.create_task(self._call())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _call(self) -> None:
        session, number = await _opened(self.http, self.headers, 3600), 0
        while True:
            number, phase, clock = number + 1, self.phase, time.perf_counter()
            await _asked(self.http, session, f"question {number}")
            self.call_s[phase].append(time.perf_counter() - clock)
            await asyncio.sleep(_PACE_S)

    def figures(self) -> dict[str, Json]:
        """Return counts and percentiles in milliseconds, by phase."""
        found = {}
        for phase, taken in self.call_s.items():
            cuts = statistics.quantiles(taken, n=100, method="inclusive")
            found[phase] = {"calls": len(taken), "p50_ms": round(1e3 * cuts[49], 1), "p99_ms": round(1e3 * cuts[98], 1)}
        return found


async def _opened(http: httpx.AsyncClient, headers: dict[str, str], ttl_s: float) -> Json:
    reply = await http.post("/sessions", json={"model": _MODEL, "ttl_s": ttl_s}, headers=headers)
    return reply.raise_for_status().json()


async def _asked(http: httpx.AsyncClient, session: Json, question: str) -> None:
    body = {"model": _MODEL, "messages": [{"role": "user", "content": question}]}
    headers = {"authorization": f"Bearer {session['api_key']}"}
    (await http.post(f"/sessions/{session['id']}/v1/chat/completions", json=body, headers=headers)).raise_for_status()


async def _key(http: httpx.AsyncClient, project: str) -> dict[str, str]:
    made = {"project": project, "name": "benchmark", "scopes": ["read", "write"]}
    reply = await http.post("/keys", json=made, headers={"authorization": f"Bearer {_OPERATOR_KEY}"})
    return {"authorization": f"Bearer {reply.raise_for_status().json()['key']}"}


async def _in_turns(count: int, act: Any) -> list[Any]:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> Any:
        async with turns:
            return await act(number)

    return await asyncio.gather(*map(one, range(count)))


async def _by_state(http: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    cursor: dict[str, str] = {}
    while True:
        reply = await http.get("/sessions", params={"limit": 200, **cursor}, headers=headers)
        page = reply.raise_for_status().json()
        for each in page["items"]:
            found[each["status"]] += 1
        if page["next_cursor"] is None:
            return dict(found)
        cursor = {"cursor": page["next_cursor"]}


async def measured(url: str, service: psutil.Process, sessions: int, ttl_s: float) -> dict[str, Json]:
    """Return all figures."""
    memory_mb = {}
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        mail, sales = await _key(http, "mail"), await _key(http, "sales")
        neighbour = Neighbour(http, sales)
        async with neighbour.calling():
            await asyncio.sleep(_ALONE_S)
            memory_mb["before"] = service.memory_info().rss / 1e6
            neighbour.phase, clock = "opening", time.perf_counter()
            opened = await _in_turns(sessions, lambda _: _opened(http, mail, ttl_s))
            opening_s, until = time.perf_counter() - clock, time.monotonic() + ttl_s
            refused = await http.post("/sessions", json={"model": _MODEL}, headers=mail)
            neighbour.phase, clock = "calling", time.perf_counter()
            await _in_turns(sessions, lambda number: _asked(http, opened[number], "hello"))
            calling_s = time.perf_counter() - clock
            memory_mb["after"] = service.memory_info().rss / 1e6
            neighbour.phase = "left open"
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            neighbour.phase = "expired"
            while (states := await _by_state(http, mail)).get("open"):
                await asyncio.sleep(_LOOK_EVERY_S)
            expired_s = time.monotonic() - until
            again = await http.post("/sessions", json={"model": _MODEL}, headers=mail)
            kept = await http.get(f"/sessions/{opened[0]['id']}/calls", headers=mail)
            late = await http.post(
                f"/sessions/{opened[0]['id']}/v1/chat/completions",
                json={"model": _MODEL, "messages": [{"role": "user", "content": "hello"}]},
                headers={"authorization": f"Bearer {opened[0]['api_key']}"},
            )
            await asyncio.sleep(_ALONE_S)
    return {
        "load": os.getloadavg()[0],
        "opened_per_s": round(sessions / opening_s, 1),
        "one_more": {"status": refused.status_code, "retry_after": refused.headers.get("retry-after")},
        "calls_per_s": round(sessions / calling_s, 1),
        "service_mb": {name: round(each, 1) for name, each in memory_mb.items()},
        "neighbour": neighbour.figures(),
        "expired_after_s": round(expired_s, 1),
        "states": states,
        "opened_again": again.status_code,
        "calls_kept": len(kept.raise_for_status().json()["items"]),
        "late_call": {"status": late.status_code, "code": late.json()["error"]["code"]},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1_000, help="as many as a project may have open")
    parser.add_argument("--ttl", type=float, default=180.0, help="seconds until they expire")
    given = parser.parse_args()
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="open-sessions-") as name,
        slow_model(_REPLY_S) as base_url,
        processes.service(
            Path(name),
            port,
            LEARNLOOP_ENGINE_URL=base_url.removesuffix("/v1"),
            LEARNLOOP_REQUIRE_KEYS="always",
            LEARNLOOP_OPERATOR_KEY=_OPERATOR_KEY,
            LEARNLOOP_RATE_PER_S="0",
            LEARNLOOP_MAX_OPEN_SESSIONS=str(given.sessions),
            DATABASE_URL="",
        ) as child,
        Service(f"http://127.0.0.1:{port}") as service,
    ):
        processes.wait_for(child, processes.answers(service))
        figures = measured(f"http://127.0.0.1:{port}", psutil.Process(child.pid), given.sessions, given.ttl)
        print(json.dumps(asyncio.run(figures), indent=2))


if __name__ == "__main__":
    main()
