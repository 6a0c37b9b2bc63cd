"""Outcomes of a release's units: frozen when their windows are over, by what was received until then."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update
from ulid import ULID

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Feedback, Release, ReleaseObservation, ReleaseUnit, Trajectory
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.releases.outcomes import close_windows, late_events
from learnloop_service.app.security.user_hash import UserHasher
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import make_trajectory
from tests.integration.app.release_stage import running_release
from tests.integration.app.served import served, settings_for

THUMBS = {"feedback": {"thumbs_up": 1.0, "none": 0.5, "thumbs_down": 0.0}}
CALLED = {"event": "call_booked"}
RESOLVED = {"value": "resolved"}
WINDOW = timedelta(hours=168)
EXPOSED = datetime.now(UTC) - timedelta(days=10)
UNITS = 40
SECRET = "a secret of at least 32 characters"


@dataclass(frozen=True)
class Sent:
    """An event that is sent about a unit. Times are minutes after the exposure."""

    unit: int
    type: str
    occurred: int
    received: int
    name: str | None = None
    value: float | None = None
    id: str = ""
    withdraws: str | None = None
    source: str = "api"


def _story() -> list[Sent]:
    """What is sent about each of `UNITS` units: some of it is withdrawn, and of some units nothing is heard."""
    random, story = Random(7), list[Sent]()
    for unit in range(UNITS):
        for number in range(random.randrange(5)):
            minute = random.randrange(5_000)
            type = random.choice(("thumbs_up", "thumbs_down", "replied", "call_booked", "outcome"))
            is_value = type == "outcome"
            name, value = ("resolved", random.choice((0.0, 0.25, 1.0))) if is_value else (None, None)
            event = Sent(unit, type, minute, minute + 1, name, value, f"{unit}.{number}")
            story.append(event)
            if random.random() < 0.4:
                story.append(Sent(unit, "withdrawn", minute + 2, minute + 3, id=f"not {event.id}", withdraws=event.id))
    return story


def _shuffled(story: Sequence[Sent]) -> list[Sent]:
    """Each arrives at some time within the window: also a withdrawal before what it withdraws."""
    random = Random(8)
    return random.sample([replace(event, received=random.randrange(1, 10_080)) for event in story], len(story))


def _withdrawn_first(story: Sequence[Sent]) -> list[Sent]:
    return [replace(event, received=0 if event.withdraws else event.received) for event in story]


def _doubled(story: Sequence[Sent]) -> list[Sent]:
    """Each arrives a second time under another id; what is withdrawn is withdrawn under the first one only."""
    return [*story, *(replace(event, id=f"again {event.id}", received=event.received + 9) for event in story)]


def _and_more(story: Sequence[Sent]) -> list[Sent]:
    """After the window everything is turned around, and in it the market simulator says the opposite."""
    late = [
        *(replace(event, id=f"late {event.id}", received=10_081) for event in _turned(story)),
        *(Sent(event.unit, "withdrawn", 1, 10_082, id=f"late not {event.id}", withdraws=event.id) for event in story),
    ]
    invented = [replace(event, id=f"invented {event.id}", source="simulator") for event in _turned(story)]
    taken_back = [
        Sent(event.unit, "withdrawn", 1, 2, id=f"invented not {event.id}", withdraws=event.id, source="simulator")
        for event in story
    ]
    return [*story, *late, *invented, *taken_back]


def _turned(story: Sequence[Sent]) -> list[Sent]:
    types = {"thumbs_up": "thumbs_down", "thumbs_down": "thumbs_up", "replied": "call_booked", "outcome": "outcome"}
    return [
        replace(event, type=types[event.type], occurred=9_999, value=None if event.value is None else 0.5)
        for event in story
        if event.type in types
    ]


VARIANTS: Sequence[Callable[[Sequence[Sent]], Sequence[Sent]]] = (
    list,
    _shuffled,
    _withdrawn_first,
    _doubled,
    _and_more,
    lambda story: _shuffled(_doubled(story)),
)


def _by_hand(story: Sequence[Sent], rule: dict[str, Any], unit: int) -> float:
    """The outcome, computed once more."""
    gone = {event.withdraws for event in story}
    unit_events = [event for event in story if event.unit == unit and event.id not in gone]
    if rule == CALLED:
        return float("call_booked" in [event.type for event in unit_events])
    types, none = (("outcome",), 0.0) if rule == RESOLVED else (("thumbs_up", "thumbs_down"), 0.5)
    last = max((event for event in unit_events if event.type in types), key=lambda event: event.occurred, default=None)
    if last is None:
        return none
    return last.value if last.value is not None else float(last.type == "thumbs_up")


async def _exposed(database: Database, release_id: str, units: Sequence[str], at: datetime = EXPOSED) -> None:
    row = {"release_id": release_id, "arm": Arm.STABLE, "probability": 0.5, "stage": 0, "exposed_at": at}
    async with database.begin() as tx:
        await tx.execute(insert(ReleaseUnit), [row | {"unit": unit} for unit in units])


async def _send(
    database: Database,
    name: str,
    subject: Callable[[int], dict[str, Any]],
    events: Sequence[Sent],
    at: datetime = EXPOSED,
) -> None:
    rows = [
        {
            "id": str(ULID()),
            "project": "mail",
            "event_id": f"{name} {event.id}",
            "type": event.type,
            "confidence": 1.0,
            "source": event.source,
            "occurred_at": at + timedelta(minutes=event.occurred),
            "received_at": at + timedelta(minutes=event.received),
            "withdraws": event.withdraws and f"{name} {event.withdraws}",
            "outcome_name": event.name,
            "value": event.value,
            **dict.fromkeys(("trajectory_id", "session_id", "user_hash", "asked_as")),
            **subject(event.unit),
        }
        for event in events
    ]
    async with database.begin() as tx:
        await tx.execute(insert(Feedback), rows)


async def _close(database: Database, release_id: str) -> int:
    async with database.begin() as tx:
        return (await close_windows(tx, await tx.get_one(Release, release_id))).total()


async def _outcomes(database: Database, release_id: str) -> list[float | None]:
    query = select(ReleaseUnit.outcome).where(ReleaseUnit.release_id == release_id).order_by(ReleaseUnit.unit)
    async with database() as tx:
        return list((await tx.execute(query)).scalars())


async def _answer(database: Database, release_id: str, unit: str) -> str:
    """A stored answer to the unit; its id."""
    id = await make_trajectory(database, None, {})
    async with database.begin() as tx:
        statement = update(Trajectory).where(Trajectory.id == id)
        await tx.execute(statement.values(release_id=release_id, user_hash=unit, project="mail"))
    return id


async def _session(database: Database, release_id: str, unit: str, *, reward: float | None, ended: int) -> str:
    """A session of the unit that ended so many minutes after the exposure; its id."""
    row: dict[Any, Any] = {
        "id": str(ULID()),
        "project": "mail",
        "asked_model": "mail/live",
        "model": "mail/agent@1",
        "backend": "embedded",
        "seed": 0,
        "explicit_restart": False,
        AgentSession.labels: {},
        "state": "ended",
        "outcome": {} if reward is None else {"reward": reward},
        "expires_at": EXPOSED + timedelta(days=30),
        "ended_at": EXPOSED + timedelta(minutes=ended),
        "release_id": release_id,
        "user_hash": unit,
    }
    async with database.begin() as tx:
        await tx.execute(insert(AgentSession).values(row))
    return str(row["id"])


@pytest.mark.parametrize("rule", [THUMBS, CALLED, RESOLVED], ids=lambda rule: next(iter(rule)))
async def test_shuffled_doubled_withdrawn_and_late_events_give_equal_outcomes(
    database: Database, rule: dict[str, Any]
) -> None:
    story, outcomes = _story(), list[list[float | None]]()
    for number, variant in enumerate(VARIANTS):
        name = f"live{number}"
        release_id = await running_release(database, name, outcome=rule)
        units = [f"{number} {unit:03}" for unit in range(UNITS)]
        await _exposed(database, release_id, units)

        def subject(unit: int, units: Sequence[str] = units, name: str = name) -> dict[str, Any]:
            return {"user_hash": units[unit], "asked_as": f"mail/{name}"}

        await _send(database, name, subject, variant(story))
        assert await _close(database, release_id) == UNITS
        outcomes.append(await _outcomes(database, release_id))
    by_hand = [_by_hand(story, rule, unit) for unit in range(UNITS)]
    assert len(set(by_hand)) > 1
    assert outcomes == [by_hand] * len(VARIANTS)


async def test_a_unit_is_found_by_what_it_was_answered_and_by_itself(database: Database) -> None:
    release_id = await running_release(database, outcome=THUMBS)
    other_id = await running_release(database, "other", outcome=THUMBS)
    units = ["a", "b", "c", "d", "e"]
    await _exposed(database, release_id, units)
    on_answer = {"trajectory_id": await _answer(database, release_id, "a")}
    on_session = {"session_id": await _session(database, release_id, "b", reward=None, ended=1)}
    on_user = {"user_hash": "c", "asked_as": "mail/live"}
    of_other_release = {"trajectory_id": await _answer(database, other_id, "d")}
    of_other_name = {"user_hash": "e", "asked_as": "mail/other"}
    subjects = [on_answer, on_session, on_user, of_other_release, of_other_name]
    await _send(
        database, "x", lambda unit: subjects[unit], [Sent(unit, "thumbs_up", 1, 1, id=str(unit)) for unit in range(5)]
    )
    await _close(database, release_id)
    assert await _outcomes(database, release_id) == [1.0, 1.0, 1.0, 0.5, 0.5]


async def test_only_what_was_received_within_the_window_counts(database: Database) -> None:
    release_id = await running_release(database, outcome=THUMBS)
    units = ["before", "first minute", "last minute", "late"]
    received = [0, 1, 10_080, 10_081]
    await _exposed(database, release_id, units)
    events = [Sent(unit, "thumbs_up", 1, minute, id=str(unit)) for unit, minute in enumerate(received)]
    await _send(database, "x", lambda unit: {"user_hash": units[unit], "asked_as": "mail/live"}, events)
    await _close(database, release_id)
    assert await _outcomes(database, release_id) == [0.5, 1.0, 1.0, 0.5]
    async with database() as tx:
        assert await late_events(tx, await tx.get_one(Release, release_id)) == {Arm.STABLE: 1}


async def test_open_windows_have_no_outcome_and_frozen_ones_never_change(database: Database) -> None:
    release_id = await running_release(database, outcome=THUMBS)
    await _exposed(database, release_id, ["a"])
    await _exposed(database, release_id, ["b"], datetime.now(UTC) - WINDOW + timedelta(hours=1))
    # Its window is over, but an event that was received in time can still be about to be committed.
    await _exposed(database, release_id, ["c"], datetime.now(UTC) - WINDOW - timedelta(seconds=1))
    assert await _close(database, release_id) == 1
    assert await _outcomes(database, release_id) == [0.5, None, None]

    async with database() as tx:
        [closed_at] = (await tx.execute(select(ReleaseUnit.closed_at).where(ReleaseUnit.unit == "a"))).scalars()
    await _send(
        database, "x", lambda _: {"user_hash": "a", "asked_as": "mail/live"}, [Sent(0, "thumbs_up", 1, 1, id="1")]
    )
    assert await _close(database, release_id) == 0
    async with database() as tx:
        query = select(ReleaseUnit.closed_at, ReleaseUnit.outcome).where(ReleaseUnit.unit == "a")
        assert (await tx.execute(query)).one() == (closed_at, 0.5)


async def test_of_two_processes_that_close_a_window_the_first_one_freezes_it(database: Database) -> None:
    release_id = await running_release(database, outcome=THUMBS)
    await _exposed(database, release_id, ["a"])
    waits = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    async def waiting() -> int:
        async with database() as tx:
            return int((await tx.execute(waits)).scalar_one())

    async with database.begin() as first:
        await close_windows(first, await first.get_one(Release, release_id))
        query = select(ReleaseUnit.closed_at)
        closed_at = (await first.execute(query)).scalar_one()
        second = asyncio.create_task(_close(database, release_id))
        await answered(waiting, bool)
    await second
    async with database() as tx:
        assert (await tx.execute(query)).scalar_one() == closed_at


@pytest.mark.parametrize("by_session", [False, True], ids=["user", "session"])
async def test_the_reward_of_the_first_session_that_ends_with_one_counts(
    database: Database, *, by_session: bool
) -> None:
    release_id = await running_release(database, outcome={"session_reward": [0.0, 2.0]})
    sessions: dict[str, list[tuple[float | None, int]]] = {
        "a": [(None, 1), (0.5, 3), (2.0, 4)],
        "b": [(2.0, 10_081)],
        "c": [],
    }
    ids = {
        unit: [await _session(database, release_id, unit, reward=reward, ended=ended) for reward, ended in ends]
        for unit, ends in sessions.items()
    }
    if not by_session:
        await _exposed(database, release_id, list(ids))
        await _close(database, release_id)
        assert await _outcomes(database, release_id) == [0.25, 0.0, 0.0]
        return
    async with database.begin() as tx:
        await tx.execute(update(Release).values(unit="session"))
    await _exposed(database, release_id, ids["a"])
    await _close(database, release_id)
    async with database() as tx:
        outcomes = dict((await tx.execute(select(ReleaseUnit.unit, ReleaseUnit.outcome))).all())
    assert [outcomes[id] for id in ids["a"]] == [0.0, 0.25, 1.0]


async def test_windows_are_closed_in_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.app.releases.outcomes._BATCH", 7)
    release_id = await running_release(database, outcome=THUMBS)
    await _exposed(database, release_id, [f"{unit:03}" for unit in range(30)])
    assert await _close(database, release_id) == 30
    assert await _outcomes(database, release_id) == [0.5] * 30


async def test_a_thumbs_down_of_the_first_hour_is_noted_when_the_hour_is_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.app.releases.outcomes._BATCH", 2)
    release_id = await running_release(database)
    events = [
        Sent(0, "thumbs_down", 1, 59, id="0"),
        Sent(1, "thumbs_down", 1, 61, id="1"),
        Sent(2, "thumbs_up", 1, 2, id="2"),
        Sent(3, "thumbs_down", 1, 2, id="3"),
        Sent(3, "withdrawn", 1, 1, id="not 3", withdraws="3"),
        Sent(4, "thumbs_down", 1, 2, id="4"),
        Sent(4, "withdrawn", 1, 61, id="not 4", withdraws="4"),
        Sent(5, "thumbs_down", 1, 2, id="5", source="simulator"),
    ]
    at = datetime.now(UTC) - timedelta(minutes=90)
    await _send(database, "x", lambda unit: {"user_hash": str(unit), "asked_as": "mail/live"}, events, at)
    row = {"release_id": release_id, "stage": 0, "arm": Arm.STABLE, "probability": 0.05, "values": {"error": 0.0}}
    async with database.begin() as tx:
        await tx.execute(
            insert(ReleaseObservation), [row | {"unit": str(unit), "observed_at": at} for unit in range(6)]
        )
        await tx.execute(insert(ReleaseObservation), [row | {"unit": "new"}])
    for _ in range(2):
        await _close(database, release_id)
        async with database() as tx:
            observed = dict((await tx.execute(select(ReleaseObservation.unit, ReleaseObservation.values))).all())
        assert {unit: values.get("thumbs_down_1h") for unit, values in observed.items()} == {
            "0": 1.0,
            "1": 0.0,
            "2": 0.0,
            "3": 0.0,
            "4": 1.0,
            "5": 0.0,
            "new": None,
        }
        assert all(values["error"] == 0.0 for values in observed.values())


_AT = "2026-03-14T09:{:02}:00Z"
_OVER_HTTP: Sequence[tuple[str, Sequence[dict[str, Any]], float]] = (
    ("nothing", [], 0.5),
    ("changes their mind", [{"type": "thumbs_down"}, {"type": "thumbs_up"}], 1.0),
    ("takes it back", [{"type": "thumbs_down"}, {"type": "thumbs_up"}, {"type": "withdrawn", "withdraws": 1}], 0.0),
    ("takes all back", [{"type": "thumbs_down"}, {"type": "withdrawn", "withdraws": 0}], 0.5),
    ("says something else", [{"type": "outcome", "name": "resolved", "value": 1}, {"type": "call_booked"}], 0.5),
)
"""What a user does, and the outcome."""


def _bodies(name: str, prefix: str = "") -> list[dict[str, Any]]:
    """The events about the users of a release, as a client sends them."""
    return [
        {
            **event,
            "event_id": f"{prefix}{name} {user} {number}",
            **({"withdraws": f"{name} {user} {event['withdraws']}"} if "withdraws" in event else {}),
            "occurred_at": _AT.format(number),
            "user": user,
            "model": f"mail/{name}",
        }
        for user, events, _ in _OVER_HTTP
        for number, event in enumerate(events)
    ]


@pytest.mark.parametrize("variant", ["in order", "backwards", "doubled"])
async def test_feedback_over_http_gives_the_same_outcome_however_it_arrives(
    data_dir: Path, database: Database, database_url: str, variant: str
) -> None:
    hasher = UserHasher(SECRET.encode())
    release_id = await running_release(database, outcome=THUMBS)
    await _exposed(database, release_id, [hasher.hash_of(user) for user, *_ in _OVER_HTTP], datetime.now(UTC))
    bodies = _bodies("live")
    if variant != "in order":
        bodies.reverse()
    if variant == "doubled":
        bodies += _bodies("live", "again ")
    settings = settings_for(data_dir, database_url, secret_key=SECRET)
    async with served(settings, ScriptedLoop()) as client:
        for body in bodies:
            (await client.post("/feedback", json=body)).raise_for_status()
        async with database.begin() as tx:
            for table, column in (("release_unit", "exposed_at"), ("feedback", "received_at")):
                await tx.execute(text(f"UPDATE {table} SET {column} = {column} - interval '8 days'"))
        late = [
            {"event_id": f"late {user}", "type": "thumbs_up", "user": user, "model": "mail/live"}
            for user, *_ in _OVER_HTTP
        ]
        accepted = await client.post("/feedback", json={"events": late})
        assert accepted.json()["accepted"] == len(late)
        await _close(database, release_id)
        [arm] = [
            arm_figures
            for arm_figures in (await client.get(f"/releases/{release_id}")).json()["arms"]
            if arm_figures["arm"] == Arm.STABLE
        ]
    async with database() as tx:
        outcomes = dict((await tx.execute(select(ReleaseUnit.unit, ReleaseUnit.outcome))).all())
    assert {user: outcomes[hasher.hash_of(user)] for user, *_ in _OVER_HTTP} == {
        user: outcome for user, _, outcome in _OVER_HTTP
    }
    assert (arm["closed_windows"], arm["late_events"], arm["mean_outcome"]) == (5, 5, 0.5)
