"""Measure what a live release adds to a request of its name.

    python -m benchmarks.service.release_latency [--requests 400] [--reply-s 0.02]

A service and its own Postgres run in separate processes; a stand-in that computes nothing takes `--reply-s` for each
reply. Chat completions, and then questions to `/ask`, are sent one at a time, in turns, to three names: one without a
release, one with a release by a new user each time (the dearest case: an exposure and a first answer are recorded), and
one with a release by users who were counted before. Prints the median of each in milliseconds, and the median of the
difference between neighbours. Fails if a release adds more than 2 ms.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from app.cli.client import Service
from app.cli.service_process import free_port
from app.db.database import Database, make_database, make_engine, parse_url
from app.db.tables import Promotion
from app.domain.release_rules import RAMP
from app.processes.postgres import EmbeddedPostgres
from benchmarks import processes
from benchmarks.engine.slow_model import slow_model
from benchmarks.releases.simulated_users import simulation_rules
from benchmarks.releases.starting import Started
from environment.email_search.synthetic import address_of
from training.rollout.http_transport import AiohttpTransport

_MOST_MS = 2.0
_PROJECT = "mail"
_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Who is it?"}], "max_tokens": 24}
_QUESTION: dict[str, Any] = {"question": "When is the kickoff?", "inbox_address": address_of("test", 0, 3)}
_ROUTES = {"/v1/chat/completions": _CHAT, "/ask": _QUESTION}
_USERS = 5
"""Number of users who come again and again."""


async def _promoted(database: Database, name: str, *, with_release: bool) -> None:
    """Promote a checkpoint to the name, and let a release of the next one divide its requests."""
    async with database.begin() as tx:
        if with_release:
            rules = simulation_rules().model_copy(update={"ramp": RAMP[-1:]})
            await Started(_PROJECT, name, "agent", 1, 2, rules, p95_s=2.0, tokens=40.0).start(tx)
        else:
            tx.add(
                Promotion(project=_PROJECT, name=name, backend="embedded", model_name="agent", step=1, actor="local")
            )


async def measured(url: str, database: Database, requests: int) -> dict[str, dict[str, float]]:
    """Return the figures of each route in milliseconds."""
    figures: dict[str, dict[str, float]] = {}
    async with httpx.AsyncClient(base_url=url, timeout=60, transport=AiohttpTransport()) as http:
        for route, body in _ROUTES.items():
            names = [f"{kind}{len(figures)}" for kind in ("plain", "released")]
            for name in names:
                await _promoted(database, name, with_release=name == names[1])
            figures[route] = await _of_route(http, route, body, names, requests)
    return figures


async def _of_route(
    http: httpx.AsyncClient, route: str, body: dict[str, Any], names: Sequence[str], requests: int
) -> dict[str, float]:
    seconds: dict[str, list[float]] = {"without": [], "new users": [], "known users": []}
    for number in range(-requests // 10, requests):  # the first ones warm up
        for way, times in seconds.items():
            user = f"user {number % _USERS if way == 'known users' else f'new {number}'}"
            name = names[0] if way == "without" else names[1]
            clock = time.perf_counter()
            asked = {"model": f"{_PROJECT}/{name}", "user": user, **body}
            (await http.post(route, json=asked)).raise_for_status()
            if number >= 0:
                times.append(1_000 * (time.perf_counter() - clock))
    figures = {f"{way}_p50_ms": round(statistics.median(times), 2) for way, times in seconds.items()}
    for way in ("new users", "known users"):
        more = [mine - plain for mine, plain in zip(seconds[way], seconds["without"], strict=True)]
        figures[f"{way}_more_ms"] = round(statistics.median(more), 2)
    return figures


async def _measure(requests: int, reply_s: float) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="release-latency-") as name, slow_model(reply_s, 0.0) as engine_url:
        directory = Path(name)
        (directory / "service").mkdir()
        postgres = EmbeddedPostgres(directory)
        await postgres.start()
        port = free_port()
        shared = {
            "LEARNLOOP_ENGINE_URL": engine_url.removesuffix("/v1"),
            "LEARNLOOP_RATE_PER_S": "0",
            "DATABASE_URL": postgres.url.render_as_string(hide_password=False),
        }
        try:
            with (
                processes.service(directory / "service", port, **shared) as child,
                Service(f"http://127.0.0.1:{port}") as service,
            ):
                processes.wait_for(child, processes.answers(service))
                engine = make_engine(parse_url(shared["DATABASE_URL"]))
                try:
                    return await measured(f"http://127.0.0.1:{port}", make_database(engine), requests)
                finally:
                    await engine.dispose()
        finally:
            await postgres.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="of each kind")
    parser.add_argument("--reply-s", type=float, default=0.02, help="seconds that the model takes for a reply")
    given = parser.parse_args()
    figures = asyncio.run(_measure(given.requests, given.reply_s))
    print(json.dumps({**figures, "load": os.getloadavg()[0], **processes.machine()}, indent=2))
    slow = [
        f"{way} of {route}"
        for route, each in figures.items()
        for way in ("new users", "known users")
        if each[f"{way}_more_ms"] > _MOST_MS
    ]
    raise SystemExit(f"a release adds more than {_MOST_MS} ms for {', '.join(slow)}" if slow else 0)


if __name__ == "__main__":
    main()
