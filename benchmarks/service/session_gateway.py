"""Measure the cost of a session: calls through sessions compared with the same calls sent directly to the model server.

    python -m benchmarks.service.session_gateway [--conversations 1 64] [--turns 4] [--rounds 3]
                                             [--reply-s 1.0 [--spread 0.5]]

A service with its own Postgres and a real engine with the base model `learnloop/tiny` run in separate processes. The
two ways take turns. Prints for each the seconds per call (p50, p99), calls per second, the time from a streaming
request to its first text, and the CPU time of a call in each process; and the median of how much longer the same call
takes through a session. Also prints the machine's load: on a busy machine the figures mean little.

The engine's model is so small that on two cores each millisecond of the service is taken from the engine. With
`--reply-s` a stand-in that computes nothing takes that long for each reply, like a model on another machine. Without
`--spread` all conversations then send their calls simultaneously, again and again, and wait for one another.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import processes
from benchmarks.engine.slow_model import slow_model
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.http_transport import AiohttpTransport

_MODEL = "learnloop/tiny"
_REPLY_TOKENS = 24
_WARM_UP_ROUNDS = 2


@dataclass
class Way:
    """One way to the model, with its measurements."""

    http: httpx.AsyncClient
    call_s: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """Durations of each call by conversation and turn, one per round."""
    first_text_s: list[float] = field(default_factory=list)
    calls_per_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    calls: int = 0

    async def opened(self) -> tuple[str, Mapping[str, str]]:
        """Return the path and headers of a new conversation."""
        return "/v1/chat/completions", {}

    async def converse(self, number: int, turns: int, path: str, headers: Mapping[str, str]) -> None:
        """Hold one conversation, whose last turn is streamed."""
        messages: list[Json] = [{"role": "user", "content": f"Who is number {number}?"}]
        for turn in range(turns):
            body = {"model": _MODEL, "messages": messages, "max_tokens": _REPLY_TOKENS, "seed": turn, "logprobs": True}
            clock = time.perf_counter()
            reply = await self.http.post(path, json=body | {"return_token_ids": True}, headers=headers)
            self.call_s.setdefault((number, turn), []).append(time.perf_counter() - clock)
            messages += [
                reply.raise_for_status().json()["choices"][0]["message"],
                {"role": "user", "content": "And then?"},
            ]
        clock = time.perf_counter()
        body = {"model": _MODEL, "messages": messages, "max_tokens": _REPLY_TOKENS, "stream": True}
        async with self.http.stream("POST", path, json=body, headers=headers) as stream:
            texts = _texts(stream)
            if await anext(texts, None) is not None:  # the model can also produce no text
                self.first_text_s.append(time.perf_counter() - clock)
            async for _ in texts:
                pass

    async def measure(self, conversations: int, turns: int, cpu_s: Callable[[], Mapping[str, float]]) -> None:
        """Hold all conversations concurrently."""
        opened = [await self.opened() for _ in range(conversations)]
        before, clock = cpu_s(), time.perf_counter()
        await asyncio.gather(
            *(self.converse(number, turns, *conversation) for number, conversation in enumerate(opened))
        )
        self.calls_per_s.append(conversations * (turns + 1) / (time.perf_counter() - clock))
        self.calls += conversations * (turns + 1)
        for name, after in cpu_s().items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + after - before[name]

    def figures(self) -> dict[str, Json]:
        """Return seconds, and calls per second (the median of the rounds)."""
        all_s = [seconds for calls in self.call_s.values() for seconds in calls]
        return {
            "call_p50_s": round(statistics.median(all_s), 4),
            "call_p99_s": round(statistics.quantiles(all_s, n=100)[98], 4),
            "first_text_p50_s": round(statistics.median(self.first_text_s), 4),
            "calls_per_s": round(statistics.median(self.calls_per_s), 1),
            "cpu_ms_per_call": {name: round(1000 * seconds / self.calls, 2) for name, seconds in self.cpu_s.items()},
        }


class ThroughSessions(Way):
    """Opens a session for each conversation."""

    async def opened(self) -> tuple[str, Mapping[str, str]]:
        session = (await self.http.post("/sessions", json={"model": _MODEL})).raise_for_status().json()
        return f"/sessions/{session['id']}/v1/chat/completions", {"authorization": f"Bearer {session['api_key']}"}


async def _texts(stream: httpx.Response) -> AsyncIterator[str]:
    rest = ""
    async for piece in stream.aiter_text():
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    if text := choice["delta"].get("content"):
                        yield text


@contextmanager
def _servers(
    directory: Path, slots: int, reply_s: float | None, spread: float
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Start the servers; yield their URLs and a function that returns the CPU seconds used so far by process."""
    for name in ("engine", "service"):
        (directory / name).mkdir()
    port = free_port()
    if reply_s is None:
        engine = processes.engine(directory / "engine", "--slots", str(slots))
    else:
        engine = slow_model(reply_s, spread)
    with engine as base_url:
        url = base_url.removesuffix("/v1")
        shared = {"LEARNLOOP_ENGINE_URL": url, "LEARNLOOP_RATE_PER_S": "0", "DATABASE_URL": ""}
        with (
            processes.service(directory / "service", port, **shared) as child,
            Service(f"http://127.0.0.1:{port}") as service,
        ):
            processes.wait_for(child, processes.answers(service))
            process = psutil.Process(child.pid)

            def cpu_s() -> dict[str, float]:
                postgres = [
                    child_process
                    for child_process in process.children(recursive=True)
                    if child_process.name() == "postgres"
                ]
                used = {"service": _cpu_s(process), "postgres": sum(map(_cpu_s, postgres))}
                return used | {"client": time.process_time()}

            yield url, f"http://127.0.0.1:{port}", cpu_s


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=600, transport=AiohttpTransport())


async def measured(
    engine_url: str, url: str, conversations: int, turns: int, rounds: int, cpu_s: Callable[[], Mapping[str, float]]
) -> dict[str, Json]:
    """Return the figures of both ways, and how much worse sessions are."""
    async with _client(engine_url) as direct, _client(url) as http:
        for way in (Way(direct), ThroughSessions(http)):
            for _ in range(_WARM_UP_ROUNDS):  # a newly started service still has imports to do
                await way.measure(conversations, turns, cpu_s)
        ways = [Way(direct), ThroughSessions(http)]
        for number in range(rounds):
            for way in ways if number % 2 else reversed(ways):
                await way.measure(conversations, turns, cpu_s)
    direct_s, session_s = (way.call_s for way in ways)
    more_s = [statistics.median(calls) - statistics.median(direct_s[same]) for same, calls in session_s.items()]
    engine, session = (way.figures() for way in ways)
    return {
        "conversations": conversations,
        "load": os.getloadavg()[0],
        "direct": engine,
        "session": session,
        "more_ms_p50": round(1000 * statistics.median(more_s), 1),
        "first_text_more_ms_p50": round(1000 * (session["first_text_p50_s"] - engine["first_text_p50_s"]), 1),
        "less_throughput": round(1 - session["calls_per_s"] / engine["calls_per_s"], 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 64], help="at the same time")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reply-s", type=float, help="a stand-in for the model's server takes so long for a reply")
    parser.add_argument("--spread", type=float, default=0.0, help="share of it that a reply may take more or less")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="session-gateway-") as name,
        _servers(Path(name), max(options.conversations), options.reply_s, options.spread) as (engine_url, url, cpu_s),
    ):
        for conversations in options.conversations:
            figures = measured(engine_url, url, conversations, options.turns, options.rounds, cpu_s)
            print(json.dumps(asyncio.run(figures), indent=2), flush=True)


if __name__ == "__main__":
    main()
