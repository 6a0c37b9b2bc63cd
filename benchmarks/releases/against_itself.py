"""Release checkpoints against themselves through real HTTP: nothing should be taken back.

    python -m benchmarks.releases.against_itself [--releases 300] [--users 200]

A service with its own Postgres answers simulated users of many promoted names. Each name has a release whose candidate
is the stable checkpoint itself, half of the users meet it from the first one on, and all five guardrails are watched.
A stand-in for the engine gives 4% of them a malformed tool call, 2% an error and 5% a slow reply, whichever arm they
are in; one in twenty sends a thumbs down. Prints how many releases were taken back or held and why, the share of the
units that met the candidate with its distance from one half in standard errors, and whether each answer was counted.
Fails if more than 1% were taken back, if that distance is over 4, or if an answer was not counted.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from app.cli.client import Service
from app.cli.service_process import free_port
from app.db.database import make_database, make_engine, parse_url
from benchmarks import processes
from benchmarks.durability.kills import database
from benchmarks.engine.slow_model import Faults, slow_model
from benchmarks.releases.simulated_users import simulation_rules
from benchmarks.releases.starting import Started
from environment.json_type import Json
from training.rollout.http_transport import AiohttpTransport

_MOST_TAKEN_BACK = 0.01
_MOST_STANDARD_ERRORS = 4.0
_THUMBS_DOWN = 0.05
_REPLY_S = 0.005
_FAULTS = Faults(malformed=0.04, error=0.02, slow=0.05, slow_s=0.25)
_SLOW_S = 0.2
"""What counts as slow: above the usual time for a reply under this load, below the one of a slow reply."""
_ASKING = 12
"""Number of users that ask at the same time."""


@dataclass(frozen=True, slots=True)
class _Users:
    """Users who each ask once, of all names in turn."""

    url: str
    names: list[str]
    of_each: int

    async def ask(self) -> Counter[int]:
        """Let everybody ask. Returns how often each status was the reply."""
        everybody = iter([(name, number) for number in range(self.of_each) for name in self.names])
        replies: Counter[int] = Counter()
        async with httpx.AsyncClient(base_url=self.url, timeout=60, transport=AiohttpTransport()) as http:

            async def some() -> None:
                for name, number in everybody:
                    replies[await _ask(http, name, number)] += 1

            await asyncio.gather(*(some() for _ in range(_ASKING)))
        return replies


async def _ask(http: httpx.AsyncClient, name: str, number: int) -> int:
    user = f"{name} {number}"
    body = {"model": name, "user": user, "messages": [{"role": "user", "content": f"Who is {user}?"}]}
    reply = await http.post("/v1/chat/completions", json=body)
    if random.Random(user).random() < _THUMBS_DOWN:
        event = {"event_id": user.replace(" ", "-"), "type": "thumbs_down", "user": user, "model": name}
        (await http.post("/feedback", json=event)).raise_for_status()
    return reply.status_code


def _looked_at(url: str) -> bool:
    """Return whether each observation of a live release was counted."""
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) FROM release_observation o JOIN release r ON r.id = o.release_id"
        row = connection.execute(f"{query} WHERE o.look IS NULL AND r.state = 'running'").fetchone()
    return row == (0,)


def _found(url: str) -> dict[str, Json]:
    with psycopg.connect(url) as connection:
        ends = connection.execute("SELECT state, coalesce(reason, '') FROM release").fetchall()
        arms: dict[str, int] = dict(
            connection.execute("SELECT arm, count(*) FROM release_unit GROUP BY arm").fetchall()
        )
        total = "SELECT key, sum((value::text)::float8)::float8 FROM release_observation, jsonb_each(values)"
        values: dict[str, float] = dict(connection.execute(f"{total} GROUP BY key").fetchall())
        observed = connection.execute("SELECT count(*) FROM release_observation").fetchone()
    units, candidate = sum(arms.values()), arms.get("candidate", 0)
    return {
        "ends": dict(Counter(" ".join(each).strip() for each in ends)),
        "units": units,
        "observations": observed[0] if observed else 0,
        "candidates_share": round(candidate / units, 4),
        "standard_errors": round((candidate - units / 2) / (units / 4) ** 0.5, 2),
        "mean_values": {name: round(value / units, 4) for name, value in values.items()},
    }


async def _measure(url: str, directory: Path, engine_url: str, releases: int, of_each: int) -> dict[str, Json]:
    port = free_port()
    settings = {
        "DATABASE_URL": url,
        "LEARNLOOP_ENGINE_URL": engine_url.removesuffix("/v1"),
        "LEARNLOOP_RATE_PER_S": "0",
    }
    with (
        processes.service(directory, port, **settings) as child,
        Service(f"http://127.0.0.1:{port}") as service,
    ):
        await asyncio.to_thread(processes.wait_for, child, processes.answers(service))
        names = await _start(url, releases)
        began = time.monotonic()
        replies = await _Users(service.url, names, of_each).ask()
        seconds = time.monotonic() - began
        await asyncio.to_thread(processes.wait_for, child, lambda: _looked_at(url), pause_s=0.5)
        found = _found(url)
    return {"releases": releases, "users_of_each": of_each, "replies": dict(replies), "seconds": round(seconds)} | found


async def _start(url: str, releases: int) -> list[str]:
    rules = simulation_rules().model_copy(update={"ramp": (0.5,)})
    engine = make_engine(parse_url(url))
    try:
        async with make_database(engine).begin() as tx:
            for number in range(releases):
                await Started("p", f"live{number}", "m", 1, 1, rules, p95_s=_SLOW_S, tokens=24.0).start(tx)
    finally:
        await engine.dispose()
    return [f"p/live{number}" for number in range(releases)]


def main() -> None:
    """Print the figures; fail if too many were taken back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=300)
    parser.add_argument("--users", type=int, default=200, help="of each release")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="learnloop-aa-") as name,
        slow_model(_REPLY_S, faults=_FAULTS) as engine_url,
    ):
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "service").mkdir()
        with database(directory / "postgres") as url:
            measured = _measure(url, directory / "service", engine_url, given.releases, given.users)
            found = asyncio.run(measured)
    print(json.dumps(found | processes.machine(), indent=2))
    taken_back = sum(number for end, number in found["ends"].items() if end.startswith("rolled_back"))
    wrong = {
        "too many were taken back": taken_back > _MOST_TAKEN_BACK * given.releases,
        "the arms are not equally likely": abs(found["standard_errors"]) > _MOST_STANDARD_ERRORS,
        "not each answer was counted": taken_back == 0 and found["observations"] != given.releases * given.users,
    }
    raise SystemExit("; ".join(what for what, is_so in wrong.items() if is_so) or 0)


if __name__ == "__main__":
    main()
