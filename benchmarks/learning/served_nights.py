"""Simulated nights through the real service: what users got trains a candidate, and what they report decides about it.

    python -m benchmarks.learning.served_nights [--nights 60] [--users 100] [--worlds helps harms] [--seeds 0 1 2]

Every night at 2 the service's schedule freezes the answers to the champion's users whose windows are closed, trains on
them, vetoes what held-out answers show to do harm, and starts a release (with `--ramp 0.5`: with the default ramp it
takes 1,900 users to leave 5%). Every day new users come and meet the arms; 85% of right answers are reported and 55% of
wrong ones, the others are silent. The service's own looks raise the share, promote, take back, confirm, and roll back.
Postgres and all of this are real. Sampling and training are scripted with known effects
(benchmarks/learning/night_worlds.py), and the clock of the database is set, not waited for.

Worlds: training helps every time (by `--effect`), does nothing, or harms (every other time so that held-out answers
cannot show it); it does nothing while questions become easier, so that users are happier after a release than before;
or users like what is new in their first window and are worse off with it in their second.

With `--real 340` two nights are real instead, with that many users each: the tiny base model answers them over HTTP and
is trained on what they report, and in the second night users meet both arms.

Fails if a harmful candidate was promoted, if fewer than 80% of the helpful candidates that were decided about were
promoted, if more than one in ten that change nothing was, if fewer than half of the promoted novelties were taken back
by themselves, if a candidate did not start from the champion, or if evidence or answers are not what `verify` makes of
the rows. A world takes about a minute of one core.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from math import sqrt
from pathlib import Path
from random import Random
from statistics import fmean, variance
from typing import Any, get_args

from sqlalchemy import insert, select
from ulid import ULID

from benchmarks import processes
from benchmarks.durability.harness import workplace
from benchmarks.learning.night_real import two_nights
from benchmarks.learning.night_service import NightService, again, night_service
from benchmarks.learning.night_worlds import (
    EASY,
    HARD,
    RIGHT,
    WORLDS,
    WRONG,
    Change,
    NightWorld,
    Skill,
    logprob,
    probability,
)
from benchmarks.served_users import BAD_REPORTED, GOOD_REPORTED
from learnloop_service.app.agent_sessions.canonical import canonical
from learnloop_service.app.agent_sessions.records import pack_answer, pack_request
from learnloop_service.app.db.tables import AgentSession, Feedback, Promotion, Release, ScheduleRun, SessionCall
from learnloop_service.app.domain.release_state import ReleaseReason, ReleaseState
from learnloop_service.app.logs import configure_logs
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.releases.exposures import AnswerObservation, record_in
from learnloop_service.app.releases.split import Exposure, Requester
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName

NAME = ModelName("bench", "live")
_START = datetime(2026, 3, 2, tzinfo=UTC)
_WINDOW_HOURS = 24
_SCHEDULE: Json = {
    "name": "nightly",
    "cron": "0 2 * * *",
    "project": "bench",
    "promoted_name": "live",
    "then": "release",
    "run": {
        "source": {
            "sessions": {
                "model": str(NAME),
                "train_on": "answers",
                "outcome": {"value": "resolved"},
                "window_hours": _WINDOW_HOURS,
                "limit": 1_500,
            }
        },
        "iterations": 2,
    },
}
_REQUEST = pack_request(canonical({"messages": [{"role": "user", "content": "Question?"}]}, None))
LEAST_HELPFUL, MOST_NEUTRAL, LEAST_ROLLED_BACK = 0.8, 0.1, 0.5


@dataclass(frozen=True, slots=True)
class NightVisit:
    """A session of a new user, and which checkpoint answered it."""

    user: str
    session: str
    kind: int
    checkpoint: str
    exposure: Exposure | None


@dataclass
class Town:
    """The users of a world."""

    service: NightService
    world: NightWorld
    nights: int
    users: int
    chance: Random
    harmed: int = 0
    """Answers by checkpoints that are worse than the first one."""
    met: Counter[str] = field(default_factory=Counter)
    """Number of answers by each checkpoint."""
    recorded: list[tuple[int, float]] = field(default_factory=list)
    """Night and recorded outcome of each answer."""
    yesterday: list[NightVisit] = field(default_factory=list)

    async def lives_through(self, night: int) -> None:
        """Let a day and a night pass."""
        day = _START + timedelta(days=night)
        await self.service.set_clock(day + timedelta(hours=10))
        visits = await self._come(night)
        events = await self._served(visits, day + timedelta(hours=10), night)
        await self.service.set_clock(day + timedelta(hours=12))
        await self.service.look()
        await self.service.set_clock(day + timedelta(hours=18))
        async with self.service.database.begin() as tx:
            await tx.execute(insert(Feedback), [*events, *self._come_again(day + timedelta(hours=18))])
        self.yesterday = visits
        await self.service.set_clock(day + timedelta(hours=26))
        await self.service.learn()

    async def _come(self, night: int) -> list[NightVisit]:
        """Let new users come, as `POST /sessions` does: a release divides them, and notes whom they met."""
        share, visits = self.world.share_of_easy(night, self.nights), []
        promotions = Promotions(self.service.database)
        for number in range(self.users):
            user = sha256(f"{night} {number} {self.chance.random()}".encode()).hexdigest()
            current = await again(partial(promotions.current_split, NAME, user))
            assert current is not None
            promotion, split, stable = current
            session = str(ULID.from_datetime(_START + timedelta(days=night, seconds=number)))
            exposure = None if split is None else split.exposure(Requester(user, session))
            model = exposure.model(stable) if exposure else ModelName("bench", promotion.model_name, promotion.step)
            kind = EASY if self.chance.random() < share else HARD
            visits.append(NightVisit(user, session, kind, str(model), exposure))
        async with self.service.database.begin() as tx:
            for visit in visits:
                if visit.exposure is not None:
                    await record_in(tx, visit.exposure, AnswerObservation(completion_tokens=1, asks_back=False))
        return visits

    async def _served(self, visits: Sequence[NightVisit], at: datetime, night: int) -> list[dict[str, Any]]:
        """Store the sessions, and return what is reported of them."""
        sessions, calls, events = [], [], []
        for visit in visits:
            skill = self.service.backend.skills[visit.checkpoint]
            is_right = self.chance.random() < probability(skill.right, visit.kind)
            sessions.append(_session_row(visit, at))
            calls.append(_call_row(visit, RIGHT if is_right else WRONG, skill, at))
            event = self._event(is_right, at + timedelta(hours=8), session_id=visit.session)
            events += event
            self.recorded.append((night, float(is_right and bool(event))))
            self.met[visit.checkpoint] += 1
            self.harmed += skill.right < self.service.backend.skills["bench/start@0"].right
        async with self.service.database.begin() as tx:
            await tx.execute(insert(AgentSession), sessions)
            await tx.execute(insert(SessionCall), calls)
        return events

    def _come_again(self, at: datetime) -> Iterable[dict[str, Any]]:
        """Let yesterday's users of a release come again, in their second window."""
        for visit in self.yesterday:
            if visit.exposure is not None and visit.exposure.is_enrolled:
                later = self.service.backend.skills[visit.checkpoint].later
                is_right = self.chance.random() < probability(later, visit.kind)
                yield from self._event(is_right, at, user_hash=visit.user, asked_as=str(NAME))

    def _event(self, is_right: bool, at: datetime, **subject: str) -> list[dict[str, Any]]:
        if self.chance.random() >= (GOOD_REPORTED if is_right else BAD_REPORTED):
            return []
        id = str(ULID())
        none = dict.fromkeys(("session_id", "user_hash", "asked_as"))
        row = {"id": id, "project": "bench", "event_id": id, "confidence": 1.0, "source": "api", "type": "outcome"}
        value = {"outcome_name": "resolved", "value": float(is_right), "occurred_at": at, "received_at": at}
        return [{**none, **row, **value, **subject}]


def _session_row(visit: NightVisit, at: datetime) -> dict[str, Any]:
    of_release = (
        dict.fromkeys(("release_id", "arm", "probability")) if visit.exposure is None else visit.exposure.columns()
    )
    return {
        "id": visit.session,
        "project": "bench",
        "asked_model": str(NAME),
        "model": visit.checkpoint,
        "step": ModelName.parse(visit.checkpoint).step,
        "backend": "embedded",
        "seed": 0,
        "explicit_restart": False,
        "labels": {"kind": "easy" if visit.kind == EASY else "hard"},
        "state": "ended",
        "calls": 1,
        "outcome": {},
        "user_hash": visit.user,
        "may_train": True,
        "opened_at": at,
        "ended_at": at + timedelta(minutes=5),
        "expires_at": at + timedelta(hours=1),
        **of_release,
    }


def _call_row(visit: NightVisit, token: int, skill: Skill, at: datetime) -> dict[str, Any]:
    sampled = {"token": f"token_id:{token}", "logprob": logprob(skill, visit.kind, token), "bytes": None}
    choice: Json = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "An answer."},
        "logprobs": {"content": [{**sampled, "top_logprobs": []}]},
    }
    completion: Json = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": visit.checkpoint,
        "choices": [choice],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
        "prompt_token_ids": [7, visit.kind],
    }
    return {
        "session_id": visit.session,
        "number": 1,
        "digest": "0" * 64,
        "occurrence": 0,
        "protocol": "chat",
        "request": _REQUEST,
        "seed": 0,
        "answer": pack_answer(completion),
        "model": visit.checkpoint,
        "prompt_tokens": 2,
        "completion_tokens": 1,
        "begun_at": at,
        "answered_at": at,
    }


async def lived(name: str, seed: int, options: argparse.Namespace) -> dict[str, Json]:
    """Return what became of the candidates of a world."""
    nights = options.nights
    world, began = WORLDS[name], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        async with night_service(Path(directory), world, options.effect, options.ramp, _START) as service:
            (await service.client.post("/schedules", json=_SCHEDULE)).raise_for_status()
            town = Town(service, world, nights, options.users, Random(f"{name} {seed}"))
            for night in range(nights):
                await town.lives_through(night)
            figures = await _figures(service, town)
    return {"world": name, "seed": seed, **figures, "seconds": round(time.monotonic() - began)}


async def _figures(service: NightService, town: Town) -> dict[str, Json]:
    async with service.database() as tx:
        dues = (await tx.execute(select(ScheduleRun).order_by(ScheduleRun.due_at))).scalars().all()
        pairs = (
            await tx.execute(select(Release, Promotion).join(Promotion, Release.promotion_id == Promotion.id))
        ).all()
    skills, faults = service.backend.skills, list[str]()
    for release, _ in pairs:
        if not (checked := await service.get(f"/releases/{release.id}/verify"))["verified"]:
            faults.append(f"the evidence of a release is not that of its rows: {checked}")
    runs = [due for due in dues if due.run_id is not None]
    for due in runs:
        if differences := (await service.get(f"/runs/{due.run_id}/verify"))["differences"]:
            faults.append(f"{due.due_at}: {differences[:2]}")
    started = {due.release_id: due.started_from for due in runs}
    faults += [
        f"a candidate started from {started[release.id]} and met {_checkpoint(stable)}"
        for release, stable in pairs
        if started[release.id] != _checkpoint(stable)
    ]
    champion = await Promotions(service.database).current(NAME.project, NAME.name)
    assert champion is not None
    first, last = skills["bench/start@0"], skills[_checkpoint(champion)]
    vetoed = Counter(str(due.reason) for due in runs if due.release_id is None)
    return {
        "nights": town.nights,
        "sessions": len(town.recorded),
        "nights_without_a_run": dict(Counter(str(due.reason) for due in dues if due.run_id is None)),
        "without_a_release": dict(vetoed),
        "candidates": [_candidate(release, skills[_checkpoint(release)], town) for release, _ in pairs],
        "champion_gained": [round(last.right - first.right, 3), round(last.later - first.later, 3)],
        "answers_worse_than_at_first": town.harmed,
        "faults": faults,
    }


def _checkpoint(row: Release | Promotion) -> str:
    return str(ModelName(row.project, row.model_name, row.step))


def _candidate(release: Release, skill: Skill, town: Town) -> dict[str, Json]:
    """Return what a candidate was and what became of it."""
    promoted_once = (ReleaseState.PROMOTED, ReleaseState.CONFIRMED)
    assert release.started_at is not None
    begun, ended = ((at - _START).days if at else town.nights for at in (release.started_at, release.ended_at))
    return {
        "change": skill.change,
        "state": release.state,
        "reason": release.reason,
        "nights": [begun, ended],
        "promoted": release.state in promoted_once or release.reason == ReleaseReason.NOVELTY,
        "met_by": town.met[_checkpoint(release)],
        "before_after": _before_after(town.recorded, begun, ended),
    }


def _before_after(recorded: Sequence[tuple[int, float]], begun: int, ended: int) -> list[float] | None:
    """Return an ordinary 95% interval, in points, of the outcome in a release's nights less that in as many before."""
    before = [outcome for night, outcome in recorded if 2 * begun - ended <= night < begun]
    after = [outcome for night, outcome in recorded if begun <= night < ended]
    if min(len(before), len(after)) < 2:
        return None
    middle = fmean(after) - fmean(before)
    margin = 1.96 * sqrt(variance(before) / len(before) + variance(after) / len(after))
    return [round(100 * end, 1) for end in (middle - margin, middle + margin)]


def faults_of(worlds: Sequence[Mapping[str, Json]]) -> list[str]:
    """Return which goals the worlds miss."""
    candidates = [one for world in worlds for one in world["candidates"]]
    by_change = {change: [one for one in candidates if one["change"] == change] for change in get_args(Change)}
    faults = [fault for world in worlds for fault in world["faults"]]
    for change in ("worse", "secretly worse"):
        if stays := [one for one in by_change[change] if one["promoted"]]:
            faults.append(f"{len(stays)} candidates that are {change} were promoted")
    decided = [one for one in by_change["better"] if one["state"] != ReleaseState.RUNNING]
    if decided and _share(decided) < LEAST_HELPFUL:
        faults.append(f"only {_share(decided):.0%} of {len(decided)} better candidates were promoted")
    if by_change["same"] and _share(by_change["same"]) > MOST_NEUTRAL:
        faults.append(f"{_share(by_change['same']):.0%} of the candidates that change nothing were promoted")
    novel = [one for one in by_change["new"] if one["promoted"] and one["state"] != ReleaseState.PROMOTED]
    if novel and fmean(one["reason"] == ReleaseReason.NOVELTY for one in novel) < LEAST_ROLLED_BACK:
        faults.append("most novelties that were promoted stayed")
    return faults


def _share(candidates: Sequence[Mapping[str, Json]]) -> float:
    return fmean(one["promoted"] for one in candidates)


def main() -> int:
    """Print what became of the candidates; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--users", type=int, default=100, help="new users a day")
    parser.add_argument("--ramp", type=float, nargs="+", default=[0.5], help="shares of releases")
    parser.add_argument("--effect", type=float, default=0.15, help="of a training on the share of right answers")
    parser.add_argument("--worlds", nargs="+", choices=tuple(WORLDS), default=list(WORLDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--real", type=int, metavar="USERS", help="in each of two nights with the tiny base model")
    options = parser.parse_args()
    configure_logs("error", "json")
    print(json.dumps({"machine": processes.machine()}), flush=True)
    if options.real:
        with workplace() as directory:
            figures = two_nights(directory, options.real)
        print(json.dumps(figures, indent=2))
        return 1 if figures["faults"] else 0
    worlds = []
    for name in options.worlds:
        for seed in options.seeds:
            worlds.append(asyncio.run(lived(name, seed, options)))
            print(json.dumps(worlds[-1]), flush=True)
    faults = faults_of(worlds)
    print(json.dumps({"faults": faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
