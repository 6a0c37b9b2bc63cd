"""Kill two services with SIGKILL again and again while users meet a release.

    python -m benchmarks.durability.release_kills [--kills 200] [--users 2000]

Two services, each with its own worker and watcher, share a Postgres that is not killed and a stand-in for the engine,
whose replies name the checkpoint that was asked. Users ask a promoted name with a release through either of them, all
the time. The release climbs its ramp, is held, resumed and at last promoted by a person who repeats what was not
answered. Then every answer that a user got must be of the arm that follows from the release's salt; nobody may have
gone back from the candidate; the name may have had two champions in order, and never another one; each transition
must have happened once; each user who was answered must have been observed, once in a stage; no thumbs up that was
accepted may be lost or counted twice, and windows close with the outcome that follows from them; and the evidence of
every event must follow from the rows.
"""

import argparse
import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.rows import dict_row
from pydantic import SecretStr
from ulid import ULID

from benchmarks.durability.harness import Killer, database, judge, serving, workplace
from benchmarks.engine.slow_model import slow_model
from learnloop_service.app.cli.client import Service, ServiceRefused, ServiceUnreachable
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Promotion, Release
from learnloop_service.app.domain.release_rules import OUTCOME, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import ReleaseState
from learnloop_service.app.releases import moves
from learnloop_service.app.releases.assignment import assignment
from learnloop_service.app.releases.decision import LEAST_UNITS
from learnloop_service.app.security.secret_box import service_key
from learnloop_service.app.security.user_hash import UserHasher
from learnloop_service.environment.json_type import Json

_SECRET = "a secret that both services of this benchmark have"
_RAMP = (0.1, 0.3, 0.5)
_RULES = ReleaseRules(
    ramp=_RAMP,
    guardrails={Guardrail.MALFORMED: 0.02, Guardrail.ERROR: 0.02},
    outcome=OUTCOME,
    window_hours=20 / 3600,
    max_days=60,
    at_end="return",
    skip_trial=True,
)
_CANDIDATE = "p/m@2"
_LEAST_USERS = round(1.5 * LEAST_UNITS / _RAMP[0])
"""With fewer users too few meet the candidate in the first stage, and the ramp is not climbed."""
_ASKING = 12
"""Number of users that ask at the same time."""


@dataclass
class Users:
    """The users, and the answers that each got, in order."""

    ports: Sequence[int]
    count: int
    answers: dict[int, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    liked: set[int] = field(default_factory=set)
    """Users whose thumbs up was accepted."""
    unanswered: int = 0
    stopping: bool = False

    async def ask(self, part: int) -> None:
        """Let a part of the users ask, one after the other, until `stopping`. No user asks twice at the same time."""
        numbers, chance = range(part, self.count, _ASKING), random.Random(part)
        async with httpx.AsyncClient(timeout=20, trust_env=False) as http:
            while not self.stopping:
                user, port = chance.choice(numbers), chance.choice(self.ports)
                body = {"model": "p/live", "user": f"user {user}", "messages": [{"role": "user", "content": "Who?"}]}
                began = time.time()
                try:
                    reply = await http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)
                except httpx.TransportError:
                    reply = None
                if reply is not None and reply.is_success:
                    self.answers[user].append((began, reply.json()["model"]))
                    if len(self.answers[user]) == 1 and user % 2:
                        await self._likes(http, user, chance)
                else:
                    self.unanswered += 1
                    await asyncio.sleep(0.05)

    async def _likes(self, http: httpx.AsyncClient, user: int, chance: random.Random) -> None:
        """Send a thumbs up, the same one again and again until it is accepted."""
        event = {"event_id": f"e{user}", "type": "thumbs_up", "user": f"user {user}", "model": "p/live"}
        while not self.stopping:
            with suppress(httpx.TransportError):
                port = chance.choice(self.ports)
                if (await http.post(f"http://127.0.0.1:{port}/feedback", json=event)).is_success:
                    self.liked.add(user)
                    return
            await asyncio.sleep(0.05)


async def _start(url: str) -> str:
    """Promote the first checkpoint and let users meet the second, as the service does after a trial. Returns the
    release's id."""
    engine, release_id = make_engine(parse_url(url)), str(ULID())
    name = {"project": "p", "name": "live", "backend": "embedded", "model_name": "m", "actor": "local"}
    async with make_database(engine).begin() as tx:
        stable = Promotion(step=1, **name)
        tx.add(stable)
        await tx.flush()
        release = Release(
            id=release_id,
            state=ReleaseState.TRIAL,
            salt=random.Random(0).randbytes(16),
            unit="user",
            promotion_id=stable.id,
            step=2,
            share=_RAMP[0],
            rules=_RULES.model_dump(mode="json"),
            baseline={"p95_s": None, "tokens": None, "users": 0, "days": 14},
            **name,
        )
        tx.add(release)
        await tx.flush()
        await moves.start_traffic(tx, release, "local", None)
    await engine.dispose()
    return release_id


@dataclass
class Person:
    """Does with the release what a person does, and repeats what was not answered."""

    ports: Sequence[int]
    release_id: str

    async def until(self, verb: str, *states: str) -> None:
        """Do it until the release is in one of the states."""
        while (await asyncio.to_thread(self._ask, verb))["state"] not in states:
            await asyncio.sleep(0.1)

    async def release(self) -> Json:
        """Return the release as one of the services shows it."""
        while (release := await asyncio.to_thread(self._ask, None))["state"] is None:
            await asyncio.sleep(0.1)
        return release

    def _ask(self, verb: str | None) -> Json:
        for port in self.ports:
            with Service(f"http://127.0.0.1:{port}", timeout_s=10) as service:
                try:
                    if verb is not None:
                        try:
                            return service.call("POST", f"/releases/{self.release_id}/{verb}")
                        except ServiceRefused:  # it was done, but not answered
                            pass
                    return service.call("GET", f"/releases/{self.release_id}")
                except (ServiceUnreachable, ServiceRefused):
                    continue
        return {"state": None}


async def _promote_under_kills(person: Person, killer: Killer, most_kills: int) -> float:
    """Hold and resume the release after half of the kills, and promote it after nine tenths. Returns when it was first
    asked to."""
    while killer.kills < most_kills // 2:
        await asyncio.sleep(0.1)
    await person.until("hold", "held")
    await person.until("resume", "running")
    while killer.kills < most_kills * 9 // 10:
        await asyncio.sleep(0.1)
    asked_at = time.time()
    await person.until("promote", "promoted")
    return asked_at


async def _load(url: str, directory: Path, engine_url: str, kills: int, count: int, seed: int) -> dict[str, Json]:
    ports = [free_port(), free_port()]
    settings = {
        "DATABASE_URL": url,
        "LEARNLOOP_ENGINE_URL": engine_url.removesuffix("/v1"),
        "LEARNLOOP_RATE_PER_S": "0",
        "LEARNLOOP_SECRET_KEY": _SECRET,
    }
    users = Users(ports, count)
    killer = Killer([partial(serving, directory / str(port), port, settings) for port in ports], random.Random(seed))
    try:
        await killer.start()  # which also makes the tables
        release_id = await _start(url)
        asking = [asyncio.create_task(users.ask(part)) for part in range(_ASKING)]
        promoting = asyncio.create_task(_promote_under_kills(Person(ports, release_id), killer, kills))
        await killer.kill(kills)
        promoted_at = await promoting
        users.stopping = True
        await asyncio.gather(*asking)
        with Service(f"http://127.0.0.1:{ports[0]}") as service:
            verified = service.call("GET", f"/releases/{release_id}/verify")
    finally:
        killer.close()
    return {"kills": killer.kills} | _account(url, users, promoted_at, verified)


def _account(url: str, users: Users, promoted_at: float, verified: Json) -> dict[str, Json]:
    """Compare what users got with the salt, and the rows with each other."""
    with psycopg.connect(url, row_factory=dict_row) as connection:

        def rows(query: str) -> list[dict[str, Any]]:
            return connection.execute(query.encode()).fetchall()

        [release] = rows("SELECT * FROM release")
        observed, units = rows("SELECT * FROM release_observation"), rows("SELECT * FROM release_unit")
        events = rows("SELECT seq, type, data FROM release_event ORDER BY seq")
        feedback = {row["user_hash"]: row["received_at"] for row in rows("SELECT user_hash, received_at FROM feedback")}
        likes = rows("SELECT count(*) AS count FROM feedback")[0]["count"]
        champions = [row["step"] for row in rows("SELECT step FROM promotion ORDER BY id")]
    hasher = UserHasher(service_key(SecretStr(_SECRET), Path()))
    hashes = {user: hasher.hash_of(f"user {user}") for user in users.answers}
    arms = {user: assignment(release["salt"], unit, _RAMP[-1]).arm for user, unit in hashes.items()}
    before = {user: [model for at, model in got if at < promoted_at] for user, got in users.answers.items()}
    observed_units, enrolled = {row["unit"] for row in observed}, {row["unit"]: row["arm"] for row in units}
    per_unit = Counter((row["unit"], row["stage"]) for row in observed)
    counted = {name: sum(cell[3] for cell in cells) for name, cells in release["evidence"]["cells"].items()}
    marked = sum(row["look"] is not None and row["look"] <= release["looks"] for row in observed)
    versions = [event["data"]["release_version"] for event in events]
    closed = [row for row in units if row["closed_at"] is not None]
    window = timedelta(hours=_RULES.window_hours)
    liked = [row for row in closed if row["exposed_at"] < feedback.get(row["unit"], row["exposed_at"])]
    in_time = {row["unit"] for row in liked if feedback[row["unit"]] <= row["exposed_at"] + window}
    return {
        "closed_windows": len(closed),
        "liked_in_time": len(in_time),
        "outcomes_that_are_wrong": sum(row["outcome"] != (1.0 if row["unit"] in in_time else 0.5) for row in closed),
        "likes_lost": sum(hashes[user] not in feedback for user in users.liked),
        "likes_twice": likes - len(feedback),
        "answers": sum(map(len, users.answers.values())),
        "users": len(users.answers),
        "not_answered": users.unanswered,
        "users_on_the_wrong_side": sum(_CANDIDATE in got and arms[user] == "stable" for user, got in before.items()),
        "users_who_went_back": sum(got != sorted(got) for got in before.values()),
        "arms_that_are_not_the_salts": sum(enrolled.get(hashes[user], arm) != arm for user, arm in arms.items()),
        "users_not_observed": sum(bool(got) and hashes[user] not in observed_units for user, got in before.items()),
        "candidates_users_not_enrolled": sum(
            _CANDIDATE in got and hashes[user] not in enrolled for user, got in before.items()
        ),
        "observed_twice": sum(number > 1 for number in per_unit.values()),
        "observations": len(observed),
        "counted_wrongly": {name: number for name, number in counted.items() if number != marked},
        "champions": champions,
        "transitions": [event["type"].removeprefix("release.") for event in events],
        "gaps_in_events": [event["seq"] for event in events] != list(range(1, len(events) + 1)),
        "versions_rise_by_one": versions == list(range(2, len(events) + 2)),
        "stages": [event["data"]["stage"] for event in events if event["type"] == "release.stage_changed"],
        "verified": verified["verified"],
        "differences": verified["differences"][:3],
    }


_MUST_BE: dict[str, Json] = {
    "outcomes_that_are_wrong": 0,
    "likes_lost": 0,
    "likes_twice": 0,
    "users_on_the_wrong_side": 0,
    "users_who_went_back": 0,
    "arms_that_are_not_the_salts": 0,
    "users_not_observed": 0,
    "candidates_users_not_enrolled": 0,
    "observed_twice": 0,
    "counted_wrongly": {},
    "champions": [1, 2],
    "gaps_in_events": False,
    "versions_rise_by_one": True,
    "stages": [1, 2],
    "verified": True,
}


def main() -> None:
    """Print the figures; fail if anything was lost, done twice or on the wrong side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="of 40 the release has no time to climb its ramp")
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    if options.users < _LEAST_USERS:
        parser.error(f"--users must be at least {_LEAST_USERS}: with fewer, the release does not climb its ramp")
    with (
        workplace() as directory,
        database(directory / "postgres") as url,
        slow_model(0.02) as engine_url,
    ):
        figures = asyncio.run(_load(url, directory, engine_url, options.kills, options.users, options.seed))
    judge(figures, _MUST_BE)
    times = Counter[str](figures["transitions"])
    if times["promoted"] != 1 or times["started"] != 1 or times["held"] != times["resumed"]:
        raise SystemExit(f"kills left traces: {figures['transitions']}")


if __name__ == "__main__":
    main()
