"""Outcomes of single sessions: what was received about them, and about their users, within their windows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import delete, insert, select
from ulid import ULID

from learnloop_service.app.agent_sessions.canonical import CanonicalRequest
from learnloop_service.app.agent_sessions.records import pack_request, unpack_request
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Feedback, SessionCall
from learnloop_service.app.feedback.forecast import fit, session_features
from learnloop_service.app.feedback.outcomes import outcome_of, session_events

RESOLVED: Mapping[str, Any] = {"value": "resolved"}
WINDOW = timedelta(days=7)
START = datetime(2026, 3, 2, tzinfo=UTC)


def session_row(user: str | None, opened: timedelta, **changed: Any) -> dict[str, Any]:
    """A session of `mail/live` that is over."""
    return {
        "id": str(ULID()),
        "project": "mail",
        "asked_model": "mail/live",
        "model": "mail/agent@1",
        "backend": "embedded",
        "seed": 0,
        "explicit_restart": False,
        "labels": {},
        "state": "ended",
        "outcome": {},
        "opened_at": START + opened,
        "expires_at": START + opened + timedelta(hours=1),
        "ended_at": START + opened + timedelta(minutes=5),
        "user_hash": user,
        **changed,
    }


def reported(subject: Mapping[str, str], occurred: timedelta, value: float, **changed: Any) -> dict[str, Any]:
    """A value of `resolved` that was received a minute after it happened."""
    id = str(ULID())
    return {
        "id": id,
        "project": "mail",
        "event_id": id,
        "type": "outcome",
        "confidence": 1.0,
        "source": "api",
        "occurred_at": START + occurred,
        "received_at": START + occurred + timedelta(minutes=1),
        "withdraws": None,
        "outcome_name": "resolved",
        "value": value,
        **dict.fromkeys(("session_id", "user_hash", "asked_as")),
        **subject,
        **changed,
    }


def on_user(user: str, name: str = "mail/live") -> dict[str, str]:
    """The user of a promoted name as a subject."""
    return {"user_hash": user, "asked_as": name}


async def stored(
    database: Database, sessions: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> None:
    """Store sessions and events."""
    async with database.begin() as tx:
        await tx.execute(insert(AgentSession), list(sessions))
        if events:
            await tx.execute(insert(Feedback), list(events))


async def _outcomes(database: Database, sessions: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> list[float]:
    ids = [session["id"] for session in sessions]
    async with database() as tx:
        events = await session_events(tx, "mail", ids, WINDOW, rule)
    return [outcome_of(rule, events.get(id, ())) for id in ids]


async def test_events_on_a_user_belong_to_the_last_session_before_them(database: Database) -> None:
    random = Random(3)
    hours = [timedelta(hours=hour) for hour in random.sample(range(24 * 20), 60)]
    sessions = [
        session_row(random.choice("abc"), at, asked_model=random.choice(("live", "mail/live", "mail/other")))
        for at in hours
    ]
    sessions.append(session_row(None, timedelta(0)))
    events = [
        reported(
            on_user(random.choice("abcd"), random.choice(("mail/live", "mail/other"))),
            timedelta(minutes=30 + 60 * random.randrange(24 * 40)),
            random.random(),
        )
        for _ in range(80)
    ]
    await stored(database, sessions, events)

    by_session: dict[str, list[tuple[datetime, float]]] = {}
    for event in events:
        before = [
            session
            for session in sessions
            if session["user_hash"] == event["user_hash"]
            and session["asked_model"] in (event["asked_as"], event["asked_as"].removeprefix("mail/"))
            and session["opened_at"] < event["occurred_at"]
        ]
        last = max(before, key=lambda session: session["opened_at"], default=None)
        if last is not None and event["received_at"] <= last["opened_at"] + WINDOW:
            by_session.setdefault(last["id"], []).append((event["occurred_at"], event["value"]))
    by_hand = [max(by_session.get(session["id"], [(START, 0.0)]))[1] for session in sessions]
    assert 10 < sum(outcome > 0 for outcome in by_hand) < 50
    assert await _outcomes(database, sessions, RESOLVED) == by_hand


async def test_events_on_a_session_and_its_reward_count_if_they_are_received_in_its_window(database: Database) -> None:
    sessions = [session_row("a", timedelta(0)), session_row("a", timedelta(hours=1)), session_row(None, timedelta(0))]
    first, second, third = ({"session_id": session["id"]} for session in sessions)
    late = START + timedelta(hours=1) + WINDOW + timedelta(minutes=1)
    taken_back = reported(third, timedelta(minutes=1), 1.0)
    withdrawal = reported(third, timedelta(minutes=2), 0.0, type="withdrawn", withdraws=taken_back["event_id"])
    events = [
        reported(first, timedelta(hours=3), 0.5),  # on the session, although another one is newer
        reported(second, timedelta(hours=2), 0.25),
        reported(second, timedelta(hours=4), 1.0, received_at=late),
        reported(second, timedelta(hours=4), 0.75, source="simulator"),
        taken_back,
        {**withdrawal, "outcome_name": None, "value": None},
    ]
    await stored(database, sessions, events)
    assert await _outcomes(database, sessions, RESOLVED) == [0.5, 0.25, 0.0]

    rewarded = [session_row("r", timedelta(0), outcome={"reward": reward}) for reward in (1.0, None, 2.0)]
    rewarded[2]["ended_at"] = START + timedelta(days=8)
    await stored(database, rewarded, ())
    assert await _outcomes(database, rewarded, {"session_reward": [0.0, 2.0]}) == [0.5, 0.0, 0.0]


async def test_events_of_another_project_are_not_those_of_a_session(database: Database) -> None:
    sessions = [session_row("a", timedelta(0)), session_row("a", timedelta(hours=1), project="other")]
    await stored(database, sessions, [reported(on_user("a", "other/live"), timedelta(hours=2), 1.0, project="other")])
    async with database() as tx:
        events = await session_events(tx, "mail", [session["id"] for session in sessions], WINDOW, RESOLVED)
    assert events == {}


async def _stored_history(database: Database) -> list[dict[str, Any]]:
    """Sessions of four users in twenty days, with their first calls, and what was reported of them."""
    random = Random(5)
    sessions = [
        session_row(
            random.choice("abcd"),
            timedelta(hours=hour),
            arm=random.choice(("stable", "candidate", None)),
            labels=random.choice(({"kind": "refund"}, {"kind": "login"}, {})),
        )
        for hour in random.sample(range(24 * 20), 60)
    ]
    events = [
        reported(
            random.choice(({"session_id": session["id"]}, on_user(session["user_hash"]))),
            session["opened_at"] - START + timedelta(minutes=10 + random.randrange(12_000)),
            random.random(),
        )
        for session in sessions
    ]
    events += [
        {
            **reported(on_user(event["user_hash"]), event["occurred_at"] - START + timedelta(minutes=99), 0.0),
            "type": "withdrawn",
            "withdraws": event["event_id"],
            "outcome_name": None,
            "value": None,
        }
        for event in events[::5]
        if event["user_hash"]
    ]
    await stored(database, sessions, events)
    calls = [
        {
            "session_id": session["id"],
            "number": 1,
            "digest": "d",
            "occurrence": 0,
            "protocol": "chat",
            "request": pack_request(CanonicalRequest((), ({"type": "function"},) * random.randrange(4), {}, "d")),
            "seed": 0,
            "prompt_tokens": random.randrange(1, 1_000),
        }
        for session in sessions[:50]
    ]
    async with database.begin() as tx:
        await tx.execute(insert(SessionCall), calls)
    return sessions


async def test_a_forecast_does_not_change_if_everything_received_later_is_removed(database: Database) -> None:
    sessions = await _stored_history(database)
    ids = [session["id"] for session in sessions]
    async with database() as tx:
        known = await session_features(tx, "mail", ids, WINDOW, RESOLVED)
        outcomes = await session_events(tx, "mail", ids, WINDOW, RESOLVED)
    forecast = fit([(known[id], outcome_of(RESOLVED, outcomes.get(id, ()))) for id in ids])
    assert len({forecast.expected(features) for features in known.values()}) > 50
    for session in sorted(sessions, key=lambda session: session["opened_at"], reverse=True)[:40]:
        id, opened_at = session["id"], session["opened_at"]
        async with database.begin() as tx:
            await tx.execute(delete(Feedback).where(Feedback.received_at > opened_at))
            await tx.execute(delete(AgentSession).where(AgentSession.opened_at > opened_at))
        async with database() as tx:
            left = await session_features(tx, "mail", [id], WINDOW, RESOLVED)
        assert left == {id: known[id]}
        assert forecast.expected(left[id]) == forecast.expected(known[id])


async def test_earlier_outcomes_are_those_of_windows_that_were_over(database: Database) -> None:
    opened = [timedelta(0), timedelta(days=1), timedelta(days=8, hours=1)]
    sessions = [session_row("a", at) for at in opened]
    other = [session_row("a", timedelta(days=7, hours=1), asked_model="mail/other"), session_row(None, timedelta(0))]
    values = [
        reported({"session_id": session["id"]}, at + timedelta(hours=1), value)
        for session, at, value in zip(sessions, opened, (1.0, 0.5, 0.25), strict=True)
    ]
    await stored(database, [*sessions, *other], values)
    async with database() as tx:
        ids = [session["id"] for session in (*sessions, *other)]
        known = await session_features(tx, "mail", ids, WINDOW, RESOLVED)
    found = [(known[id].is_new, known[id].earlier, known[id].earlier_sum) for id in ids]
    assert found == [(True, 0, 0.0), (False, 0, 0.0), (False, 2, 1.5), (True, 0, 0.0), (True, 0, 0.0)]


async def test_what_a_session_began_with_is_known(database: Database) -> None:
    sessions = await _stored_history(database)
    ids = [session["id"] for session in sessions]
    async with database() as tx:
        known = await session_features(tx, "mail", ids, WINDOW, RESOLVED)
        calls = {call.session_id: call for call in (await tx.execute(select(SessionCall))).scalars()}
    for session in sessions:
        features, call = known[session["id"]], calls.get(session["id"])
        assert features.at == session["opened_at"]
        assert features.kind == session["labels"].get("kind")
        assert features.candidate is (session["arm"] == "candidate")
        assert features.prompt_tokens == (call.prompt_tokens if call else 0)
        assert features.tools == (len(unpack_request(call.request).tools) if call else 0)
