"""What a session costs: calls of many conversations through a session beside the same calls directly at the engine.

    python -m benchmarks.session_gateway [--conversations 64] [--turns 4] [--rounds 3]

A real engine with the base model `learnloop/tiny`, and a real service with a Postgres of its own, in processes of their
own. The two ways take turns. Prints, for each, seconds of a call (p50, p99) and calls per second, and the time from a
stream's request to its first text. The load of the machine is printed, too: on a busy one the figures say little.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.engine_process import EngineProcess
from tests.integration.app.test_serving import _process

Json = Any
_KEY = "key-of-the-benchmark"
_MODEL = "learnloop/tiny"
_REPLY_TOKENS = 24
_WARM_UP_ROUNDS = 2


class Way:
    """One way to the model: where a conversation's calls go, with which headers."""

    def __init__(self, name: str, http: httpx.AsyncClient) -> None:
        self.name = name
        self.http = http
        self.call_s: list[float] = []
        self.first_text_s: list[float] = []
        self.calls_per_s: list[float] = []

    async def opened(self) -> tuple[str, Mapping[str, str]]:
        """The path and the headers of a new conversation."""
        return "/v1/chat/completions", {"authorization": f"Bearer {_KEY}"}

    async def converse(self, number: int, turns: int) -> None:
        """One conversation, whose last turn is streamed."""
        path, headers = await self.opened()
        messages: list[Json] = [{"role": "user", "content": f"Who is number {number}?"}]
        for turn in range(turns):
            body = {"model": _MODEL, "messages": messages, "max_tokens": _REPLY_TOKENS, "seed": turn, "logprobs": True}
            clock = time.perf_counter()
            reply = await self.http.post(path, json=body | {"return_token_ids": True}, headers=headers)
            self.call_s.append(time.perf_counter() - clock)
            messages += [
                reply.raise_for_status().json()["choices"][0]["message"],
                {"role": "user", "content": "And then?"},
            ]
        clock = time.perf_counter()
        body = {"model": _MODEL, "messages": messages, "max_tokens": _REPLY_TOKENS, "stream": True}
        async with self.http.stream("POST", path, json=body, headers=headers) as stream:
            async for line in stream.aiter_lines():
                if '"content":"' in line.replace(" ", "") and '"content":""' not in line.replace(" ", ""):
                    self.first_text_s.append(time.perf_counter() - clock)
                    break

    async def measure(self, conversations: int, turns: int) -> None:
        """All of them at the same time."""
        clock = time.perf_counter()
        await asyncio.gather(*(self.converse(number, turns) for number in range(conversations)))
        self.calls_per_s.append(conversations * (turns + 1) / (time.perf_counter() - clock))

    def figures(self) -> dict[str, float]:
        """Seconds, and calls a second (the median of the rounds)."""
        cuts = statistics.quantiles(self.call_s, n=100)
        return {
            "call_p50_s": round(statistics.median(self.call_s), 4),
            "call_p99_s": round(cuts[98], 4),
            "first_text_p50_s": round(statistics.median(self.first_text_s), 4),
            "calls_per_s": round(statistics.median(self.calls_per_s), 1),
        }


class ThroughSessions(Way):
    """A session for each conversation."""

    async def opened(self) -> tuple[str, Mapping[str, str]]:
        session = (await self.http.post("/sessions", json={"model": _MODEL})).raise_for_status().json()
        return f"/sessions/{session['id']}/v1/chat/completions", {"authorization": f"Bearer {session['api_key']}"}


async def measured(conversations: int, turns: int, rounds: int) -> dict[str, Json]:
    """The figures of both ways, and what the session's is worse by."""
    with tempfile.TemporaryDirectory(prefix="session-gateway-") as name:
        directory = Path(name)
        options = ("--slots", str(conversations), "--api-key-env", "BENCHMARK_KEY")
        with EngineProcess(directory / "engine", *options, environment={"BENCHMARK_KEY": _KEY}) as engine:
            url = engine.base_url.removesuffix("/v1")
            shared = {"LEARNLOOP_ENGINE_URL": url, "LEARNLOOP_ENGINE_KEY": _KEY, "LEARNLOOP_RATE_PER_S": "0"}
            limits = httpx.Limits(max_connections=conversations)
            async with (
                _process(directory / "service", **shared) as (_, service),
                httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False) as direct,
                httpx.AsyncClient(base_url=service.base_url, timeout=600, limits=limits, trust_env=False) as http,
            ):
                for way in (Way("engine", direct), ThroughSessions("session", http)):
                    for _ in range(_WARM_UP_ROUNDS):  # a service that has just started imports much beside its work
                        await way.measure(conversations, turns)
                ways = [Way("engine", direct), ThroughSessions("session", http)]
                for number in range(rounds):
                    for way in ways if number % 2 else reversed(ways):
                        await way.measure(conversations, turns)
    engine_figures, session_figures = (way.figures() for way in ways)
    return {
        "conversations": conversations,
        "load": os.getloadavg()[0],
        "engine": engine_figures,
        "session": session_figures,
        "more_ms_p50": round(1000 * (session_figures["call_p50_s"] - engine_figures["call_p50_s"]), 1),
        "first_text_more_ms_p50": round(
            1000 * (session_figures["first_text_p50_s"] - engine_figures["first_text_p50_s"]), 1
        ),
        "less_throughput": round(1 - session_figures["calls_per_s"] / engine_figures["calls_per_s"], 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measured(given.conversations, given.turns, given.rounds)), indent=2))


if __name__ == "__main__":
    main()
