"""Release prompts alone through real HTTP: equal ones stay, a harmful one is taken back, and going back brings it back.

    python -m benchmarks.releases.prompts [--releases 300] [--users 200]

A service with its own Postgres answers simulated users of many promoted names by `/ask`. All names mean one checkpoint
with the prompt `calm`. Each has a release whose candidate is the same checkpoint with the prompt `kind`, which half of
the users meet from the first one on. A stand-in for the engine knows the prompt only by the system message that it
gets. With both it sends 4% of the users a malformed tool call, whichever arm they are in; with the prompt `loud` 14%.

Then an operator releases `loud` to the users of one more name, promotes the next checkpoint with `kind` there, and
promotes the older checkpoint again. Fails if a release of equal prompts was taken back, an arm was asked with another
prompt than its own, the arms are not equally likely, `loud` was not taken back, or the older prompt is not back.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg

from benchmarks import processes
from benchmarks.durability.harness import database, serving
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.email_search.synthetic import address_of
from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.http_transport import AiohttpTransport
from tests.fakes.scripted_chat import Reply, call, scripted_chat

_MOST_STANDARD_ERRORS = 4.0
_ASKING = 12
"""Number of users that ask at the same time."""
_PROMPTS = ("calm", "kind", "loud")
_MALFORMED = {"calm": 0.04, "kind": 0.04, "loud": 0.14}
"""Shares of the users that get a malformed tool call."""
_MOST_ASKING = 1_500
"""Number of users, in both arms, within which a harmful candidate is taken back."""


@dataclass
class _Model:
    """The stand-in: how a user's reply is depends on the question and the prompt alone."""

    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of requests by checkpoint and prompt."""

    async def reply(self, request: Mapping[str, Json]) -> Reply:
        if "messages" not in request:
            return Reply(body={"object": "list", "data": [{"id": "p/m", "object": "model", "steps": [0, 1]}]})
        system, question = (message["content"] for message in request["messages"][:2])
        prompt = next(name for name in _PROMPTS if f"Be {name}." in system)
        self.asked[request["model"], prompt] += 1
        if random.Random(question).random() < _MALFORMED[prompt]:
            return Reply((("search_inbox", "{"),))
        return call("return_final_answer", answer="I don't know", sources=[])


@dataclass(frozen=True, slots=True)
class _Users:
    """Users who each ask one of the names once."""

    http: httpx.AsyncClient

    async def ask(self, name: str, number: int) -> Json:
        """Let a user of the name ask, and return the reply."""
        question = {"question": f"Who is user {number} of {name}?", "inbox_address": address_of("test", 0, number % 50)}
        reply = await self.http.post("/ask", json={"model": name, "user": f"{name} {number}", **question})
        return reply.json()

    async def everybody(self, names: list[str], of_each: int) -> None:
        """Let all users of all names ask."""
        asking = iter([(name, number) for number in range(of_each) for name in names])

        async def some() -> None:
            for name, number in asking:
                await self.ask(name, number)

        await asyncio.gather(*(some() for _ in range(_ASKING)))


async def _set_up(http: httpx.AsyncClient, name: str, candidate: str) -> str:
    """Promote the checkpoint with `calm` to the name, release it with the other prompt, and return the release's id."""
    request = {"step": 0, "as": name, "prompt": "calm"}
    (await http.post("/models/p/m/promote", json=request)).raise_for_status()
    release = {"prompt": candidate, "skip_trial": True, "ramp": [0.5]}
    accepted = await http.post(f"/promotions/p/{name}/releases", json=release)
    return str(accepted.raise_for_status().json()["release_id"])


async def _operator(users: _Users, model: _Model) -> dict[str, Json]:
    """Release the harmful prompt, promote another one with the next checkpoint, and go back."""
    http, release_id, met = users.http, await _set_up(users.http, "desk", "loud"), 0
    while (await http.get(f"/releases/{release_id}")).json()["state"] == "running" and met < _MOST_ASKING:
        await asyncio.gather(*(users.ask("p/desk", met + number) for number in range(_ASKING)))
        met += _ASKING
    ended = (await http.get(f"/releases/{release_id}")).json()
    met_it = model.asked["p/m@0", "loud"]
    for step, prompt in ((1, {"prompt": "kind"}), (0, {})):
        promoted = await http.post("/models/p/m/promote", json={"step": step, "as": "desk", **prompt})
        promoted.raise_for_status()
        before = Counter(model.asked)
        await users.ask("p/desk", -1 - step)
        answered = [f"{checkpoint} with {name}" for checkpoint, name in model.asked - before]
    return {
        "harmful": f"{ended['state']} ({ended['reason']})",
        "met_the_harmful_one": met_it,
        "current_after_going_back": promoted.json()["prompt"]["name"],
        "answered_after_going_back": answered,
    }


def _are_looked_at(url: str) -> bool:
    """Return whether each observation of a live release was counted."""
    waiting = "SELECT count(*) FROM release_observation o JOIN release r ON r.id = o.release_id"
    with psycopg.connect(url) as connection:
        row = connection.execute(f"{waiting} WHERE o.look IS NULL AND r.state = 'running'").fetchone()
    return row == (0,)


def _figures(url: str) -> dict[str, Json]:
    asked_with = "SELECT arm, (SELECT name FROM dataset_version v WHERE v.sha256 = prompt_sha256), count(*)"
    with psycopg.connect(url) as connection:
        states = connection.execute("SELECT state, coalesce(reason, '') FROM release").fetchall()
        pairs = connection.execute(f"{asked_with} FROM trajectory WHERE kind = 'ask' GROUP BY 1, 2").fetchall()
        arms: dict[str, int] = dict(connection.execute("SELECT arm, count(*) FROM release_unit GROUP BY 1").fetchall())
    units, candidate = sum(arms.values()), arms.get("candidate", 0)
    return {
        "ends": dict(Counter(" ".join(end).strip() for end in states)),
        "units": units,
        "arms": {f"{arm} with {prompt}": count for arm, prompt, count in pairs},
        "standard_errors": round((candidate - units / 2) / (units / 4) ** 0.5, 2),
    }


async def _measured(directory: Path, url: str, releases: int, of_each: int) -> dict[str, Json]:
    model, port, names = _Model(), free_port(), [f"live{number}" for number in range(releases)]
    async with scripted_chat(model.reply) as chat:
        settings = {
            "DATABASE_URL": url,
            "LEARNLOOP_ENGINE_URL": chat.url.removesuffix("/v1"),
            "LEARNLOOP_RATE_PER_S": "0",
        }
        async with AsyncExitStack() as stack:
            opening = serving(directory, port, settings)
            service = await asyncio.to_thread(stack.enter_context, opening)  # it asks the model meanwhile
            transport = AiohttpTransport()
            http = httpx.AsyncClient(base_url=service.client.url, timeout=120, transport=transport)
            users = _Users(await stack.enter_async_context(http))
            for prompt in _PROMPTS:
                body = {"parts": {"system": f"{{original}} Be {prompt}."}}
                (await http.post("/prompts", params={"name": prompt}, json=body)).raise_for_status()
            for name in names:
                await _set_up(http, name, "kind")
            await users.everybody([f"p/{name}" for name in names], of_each)
            while not await asyncio.to_thread(_are_looked_at, url):
                await asyncio.sleep(0.5)
            equal = await asyncio.to_thread(_figures, url)
            return {"releases": releases, "users_of_each": of_each, **equal, **await _operator(users, model)}


def main() -> None:
    """Print the figures; fail if they are not as they must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=300)
    parser.add_argument("--users", type=int, default=200, help="of each release")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-prompts-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with database(directory / "postgres") as url:
            figures = asyncio.run(_measured(directory / "service", url, options.releases, options.users))
    print(json.dumps(figures | processes.machine(), indent=2))
    wrong = {
        "equal prompts were taken back": figures["ends"] != {"running": options.releases},
        "an arm had another prompt": set(figures["arms"]) != {"stable with calm", "candidate with kind"},
        "the arms are not equally likely": abs(figures["standard_errors"]) > _MOST_STANDARD_ERRORS,
        "the harmful prompt was not taken back": figures["harmful"] != "rolled_back (guardrail)",
        "the older prompt is not back": figures["answered_after_going_back"] != ["p/m@0 with calm"],
    }
    raise SystemExit("; ".join(what for what, is_so in wrong.items() if is_so) or 0)


if __name__ == "__main__":
    main()
