"""Feedback over HTTP, what is kept of it, and what evidence it makes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select, text
from ulid import ULID

import learnloop_service.judges.registry
from learnloop_sales.environment import SalesEmail
from learnloop_service.app.aio.event_loops import run_in_thread
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Feedback, Promotion, Run
from learnloop_service.app.feedback.evidence import StoredFeedback
from learnloop_service.app.schemas.feedback import MAX_EVENTS
from learnloop_service.app.worker.judge_services import judge_services
from learnloop_service.judges.base import Candidate, Evidence
from learnloop_service.judges.feedback import ONLINE
from tests.conditions import answered
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import email, make_run, make_trajectory
from tests.integration.app.served import served, settings_for


@dataclass(frozen=True)
class Outside:
    """The service as a client sees it, and its database."""

    client: httpx.AsyncClient
    database: Database

    async def email(self, run_id: str | None = None, citations: str = "ab", **more: Any) -> str:
        """A trajectory with an email."""
        return await make_trajectory(self.database, run_id, email(citations), **more)

    async def post(self, **event: Any) -> httpx.Response:
        return await self.client.post("/feedback", json={"event_id": str(ULID())} | event)

    async def batch(self, *events: dict[str, Any], **more: Any) -> Any:
        """The reply to a batch; events without an id get one."""
        identified = [{"event_id": str(ULID())} | event for event in events]
        return (await self.client.post("/feedback", json={"events": identified} | more)).raise_for_status().json()

    async def items(self, run_id: str, what: str = "", **params: Any) -> list[Any]:
        page = await self.client.get(f"/runs/{run_id}/feedback{what}", params=params)
        return list(page.raise_for_status().json()["items"])

    async def evidence(self, run_id: str) -> dict[str, Evidence]:
        """What the judge of that run would hear, by trajectory."""
        async with self.database() as tx:
            run = await tx.get_one(Run, run_id)
        source = StoredFeedback(self.database, asyncio.get_running_loop(), run)
        return {item.trajectory_id: item for item in await source.evidence()}


@asynccontextmanager
async def _outside(data_dir: Path, database_url: str, **more: Any) -> AsyncIterator[Outside]:
    engine = make_engine(parse_url(database_url))
    try:
        async with served(settings_for(data_dir, database_url, **more), ScriptedLoop()) as client:
            yield Outside(client, make_database(engine))
    finally:
        await engine.dispose()


@pytest.fixture
async def outside(data_dir: Path, database_url: str) -> AsyncIterator[Outside]:
    async with _outside(data_dir, database_url) as world:
        yield world


def _problem(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["detail"])


async def test_the_furthest_outcome_counts_however_late_it_comes(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    email_id = await outside.email(run_id, shown_after=2)
    accepted = (await outside.post(type="call_booked", trajectory_id=email_id)).raise_for_status().json()
    assert accepted == {"accepted": 1, "duplicates": 0, "rejected": [], "links": {run_id: f"/runs/{run_id}/feedback"}}
    # The run's frontend knows no trajectories, only the run and the iteration; and it is late.
    early = "2026-03-14T09:30:00+01:00"
    (await outside.post(type="opened", run_id=run_id, iteration=2, occurred_at=early)).raise_for_status()
    assert (await outside.evidence(run_id))[email_id] == Evidence(email_id, frozenset("ab"), 0.6, 0.0, 0.0)
    listed = await outside.items(run_id)
    assert [event["type"] for event in listed] == ["opened", "call_booked"]
    assert datetime.fromisoformat(listed[0]["occurred_at"]) == datetime(2026, 3, 14, 8, 30, tzinfo=UTC)
    assert listed[0] | {"trajectory_id": email_id, "iteration": 2, "source": "api", "over": None} == listed[0]
    assert await outside.items(run_id, "/emails") == [
        {
            "trajectory_id": email_id,
            "kind": "showcase",
            "iteration": 2,
            "online": 0.6,
            "wins": 0.0,
            "losses": 0.0,
            "simulated": False,
        }
    ]


async def test_people_prefer_one_email_to_another(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    better, worse = await outside.email(run_id), await outside.email(run_id)
    await outside.batch(
        {"type": "preferred", "trajectory_id": better, "over": worse, "confidence": 0.5},
        {"type": "thumbs_up", "trajectory_id": worse, "confidence": 0.25},
        {"type": "thumbs_down", "trajectory_id": better},
        {"type": "preferred", "trajectory_id": better, "over": worse},
    )
    by_email = await outside.evidence(run_id)
    assert (by_email[better].wins, by_email[better].losses, by_email[better].online) == (1.5, 1.0, None)
    assert (by_email[worse].wins, by_email[worse].losses, by_email[worse].online) == (0.25, 1.5, None)


async def test_an_event_that_comes_twice_counts_once(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    event = {"event_id": "mail-7", "type": "thumbs_up", "trajectory_id": await outside.email(run_id, shown_after=0)}
    assert (await outside.post(**event)).json()["accepted"] == 1
    again = (await outside.post(**event)).json()
    assert (again["accepted"], again["duplicates"], again["rejected"]) == (0, 1, [])
    # By its run and iteration it is the same email.
    del event["trajectory_id"]
    assert (await outside.post(**event, run_id=run_id, iteration=0)).json()["duplicates"] == 1
    changed = await outside.post(**event, run_id=run_id, iteration=0, confidence=0.5)
    assert "'mail-7' was already sent with a different confidence" in _problem(changed, 409)
    for change in ({"type": "opened"}, {"source": "simulator"}, {"occurred_at": "2026-01-01T00:00:00Z"}):
        _problem(await outside.post(**(event | {"run_id": run_id, "iteration": 0} | change)), 409)
    assert len(await outside.items(run_id)) == 1


async def test_one_event_sent_by_many_at_once_is_one_row(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    one, other = await outside.email(run_id), await outside.email(run_id)
    events = [{"event_id": f"e{n}", "type": "opened", "trajectory_id": one} for n in range(50)]
    replies = await asyncio.gather(*(outside.batch(*(events if n % 2 else events[::-1])) for n in range(8)))
    assert sum(reply["accepted"] for reply in replies) == 50
    assert sum(reply["duplicates"] for reply in replies) == 7 * 50
    assert len(await outside.items(run_id, limit=200)) == 50
    # Of two events that claim one id, one is kept.
    claims = [{"event_id": "claim", "type": "opened", "trajectory_id": id} for id in (one, other)]
    assert sorted(r.status_code for r in await asyncio.gather(*(outside.post(**claim) for claim in claims))) == [
        200,
        409,
    ]


async def test_two_services_with_the_same_events_do_not_wait_for_each_other(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    email_id = await outside.email(run_id)
    events = [{"event_id": f"e{n}", "type": "opened", "trajectory_id": email_id} for n in range(3)]
    async with outside.database.begin() as another:
        await another.execute(insert(Feedback), [_stored(run_id, events[0])])
        posting = asyncio.create_task(outside.batch(*events[::-1]))
        await answered(lambda: another.execute(WAITING), lambda waiting: waiting.scalar_one())
        await another.execute(insert(Feedback), [_stored(run_id, event) for event in events[1:]])
    assert (await posting)["duplicates"] == 3


WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


def _stored(run_id: str, event: dict[str, Any]) -> dict[str, Any]:
    """What another service writes for the event."""
    more = {"confidence": 1.0, "source": "api", "occurred_at": datetime.now(UTC)}
    return {"id": str(ULID()), "run_id": run_id, "project": "learnloop"} | event | more


async def test_of_a_batch_the_good_events_are_kept_and_the_bad_told(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    email_id = await outside.email(run_id, shown_after=1)
    unwritten = await make_trajectory(outside.database, run_id, {"email": None})
    soon = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
    reply = await outside.batch(
        {"event_id": "good", "type": "opened", "trajectory_id": email_id},
        {"event_id": "unknown", "type": "opened", "trajectory_id": "nobody"},
        {"event_id": "unwritten", "type": "sent", "trajectory_id": unwritten},
        {"event_id": "no showcase", "type": "sent", "run_id": run_id, "iteration": 7},
        {"event_id": "no run", "type": "sent", "run_id": "01K", "iteration": 1},
        {"event_id": "itself", "type": "preferred", "trajectory_id": email_id, "over": email_id},
        {"event_id": "over nobody", "type": "preferred", "trajectory_id": email_id, "over": "nobody"},
        {"event_id": "soon", "type": "sent", "trajectory_id": email_id, "occurred_at": soon},
        {"event_id": "good", "type": "opened", "trajectory_id": email_id},
        {"event_id": "good", "type": "replied", "trajectory_id": email_id},
        {"event_id": "last", "type": "replied", "run_id": run_id, "iteration": 1},
    )
    assert (reply["accepted"], reply["duplicates"]) == (2, 1)
    reasons = {rejection["event_id"]: rejection["detail"] for rejection in reply["rejected"]}
    assert [rejection["index"] for rejection in reply["rejected"]] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert "no trajectory 'nobody'" in reasons["unknown"]
    assert "no trajectory 'nobody'" in reasons["over nobody"]
    assert "has no email" in reasons["unwritten"]
    assert "Run '01K' has no sample email" in reasons["no run"]
    assert "iteration 7" in reasons["no showcase"]
    assert "over itself" in reasons["itself"]
    assert "future" in reasons["soon"]
    assert "different type" in reasons["good"]
    assert {event["event_id"] for event in await outside.items(run_id)} == {"good", "last"}


async def test_one_event_that_cannot_be_taken_is_a_problem(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    unwritten = await make_trajectory(outside.database, run_id, {"email": None}, shown_after=0)
    _problem(await outside.post(type="sent", trajectory_id="nobody"), 404)
    _problem(await outside.post(type="sent", run_id="01K", iteration=0), 404)
    _problem(await outside.post(type="sent", run_id=run_id, iteration=1), 404)
    for type in ("sent", "thumbs_down"):
        assert "has no email" in _problem(await outside.post(type=type, run_id=run_id, iteration=0), 422)
        _problem(await outside.post(type=type, trajectory_id=unwritten), 422)
    assert await outside.items(run_id) == []
    _problem(await outside.client.get("/runs/01K/feedback"), 404)
    _problem(await outside.client.get("/runs/01K/feedback/emails"), 404)


BAD: list[dict[str, Any]] = [
    {"type": "clicked"},
    {"trajectory_id": None},
    {"run_id": "a", "iteration": 0},
    {"trajectory_id": None, "run_id": "a"},
    {"trajectory_id": None, "iteration": 0},
    {"type": "preferred"},
    {"over": "other"},
    {"confidence": 1.0},
    {"type": "thumbs_up", "confidence": 0},
    {"type": "thumbs_up", "confidence": 1.5},
    {"event_id": ""},
    {"event_id": "x" * 201},
    {"event_id": "a\x00b"},
    {"rating": 5},
    {"source": "nobody"},
    {"occurred_at": "2026-03-14T09:30:00"},
    {"occurred_at": "2026-03-14"},
    {"occurred_at": 1_700_000_000},
    {"occurred_at": "1700000000"},
    {"occurred_at": "0001-01-01T00:00:00+14:00"},
    {"occurred_at": "2026-02-30T00:00:00Z"},
    {"occurred_at": "9999-12-31T23:59:59-14:00"},
]


async def test_badly_formed_feedback_is_refused_as_a_whole(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    good = {"event_id": "e", "type": "opened", "trajectory_id": await outside.email(run_id)}
    for change in BAD:
        assert _problem(await outside.client.post("/feedback", json=good | change), 422), change
    bodies: tuple[Any, ...] = (
        {},
        [],
        [good],
        {"events": []},
        {"events": [good] * (MAX_EVENTS + 1)},
        {"events": good},
        7,
    )
    for body in bodies:
        _problem(await outside.client.post("/feedback", json=body), 422)
    # One of a batch has a source of its own, or is no event at all.
    for second in ({**good, "source": "api"}, {**good, "type": "clicked"}, None):
        _problem(await outside.client.post("/feedback", json={"events": [good, second]}), 422)
    assert await outside.items(run_id) == []
    for query in ("cursor=nonsense", "limit=0"):
        _problem(await outside.client.get(f"/runs/{run_id}/feedback?{query}"), 422)


async def test_answers_that_are_no_emails_have_thumbs_only(outside: Outside) -> None:
    run_id = await make_run(outside.database, environment="email_search")
    answer = await make_trajectory(outside.database, run_id, {"answer": "14 March"})
    (await outside.post(type="thumbs_up", trajectory_id=answer)).raise_for_status()
    _problem(await outside.post(type="opened", trajectory_id=answer), 422)
    assert (await outside.evidence(run_id))[answer] == Evidence(answer, frozenset(), None, 1.0, 0.0)


async def test_invented_events_are_shown_as_such(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    real, invented = await outside.email(run_id), await outside.email(run_id)
    await outside.batch({"type": "opened", "trajectory_id": invented}, source="simulator")
    (await outside.post(type="sent", trajectory_id=invented)).raise_for_status()
    (await outside.post(type="replied", trajectory_id=real)).raise_for_status()
    assert [event["source"] for event in await outside.items(run_id)] == ["api", "api", "simulator"]
    assert {row["trajectory_id"]: row["simulated"] for row in await outside.items(run_id, "/emails")} == {
        real: False,
        invented: True,
    }
    by_email = await outside.evidence(run_id)
    assert by_email[invented].simulated
    assert not by_email[real].simulated


async def test_evidence_is_of_all_runs_on_the_same_graph(outside: Outside) -> None:
    graph, another = {"sha256": "a" * 64}, {"sha256": "b" * 64}
    runs = [
        await make_run(outside.database, graph=graph),
        await make_run(outside.database, graph=graph),
        await make_run(outside.database, graph=another),
        await make_run(outside.database),
        await make_run(outside.database, environment="email_search", graph=graph),
        await make_run(outside.database, graph=graph, project="another"),
    ]
    emails = [await outside.email(run_id) for run_id in (*runs, None)]
    await outside.batch(*({"type": "opened", "trajectory_id": id} for id in emails))
    heard = [list(await outside.evidence(run_id)) for run_id in runs]
    assert heard == [[emails[1], emails[0]], [emails[1], emails[0]], [emails[2]], [emails[3]], [emails[4]], [emails[5]]]
    # One without a graph and one whose graph is null are both on synthetic graphs.
    assert await _with_null_graph(outside) == {emails[3]}


async def _with_null_graph(outside: Outside) -> set[str]:
    run_id = await make_run(outside.database)
    async with outside.database.begin() as tx:
        run = await tx.get_one(Run, run_id)
        run.request = {**run.request, "environment": {"name": "sales_email", "config": {"graph": None}}}
    return set(await outside.evidence(run_id))


async def test_lists_come_in_pages(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    emails = [await outside.email(run_id) for _ in range(5)]
    await outside.batch(*({"type": "opened", "trajectory_id": id} for id in emails))
    for what in ("", "/emails"):
        path = f"/runs/{run_id}/feedback{what}"
        first = (await outside.client.get(path, params={"limit": 3})).json()
        rest = (await outside.client.get(path, params={"limit": 3, "cursor": first["next_cursor"]})).json()
        assert (len(first["items"]), len(rest["items"]), rest["next_cursor"]) == (3, 2, None)
        assert {item["trajectory_id"] for item in first["items"] + rest["items"]} == set(emails)


async def test_groups_that_are_judged_at_once_hear_the_same(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    (await outside.post(type="opened", trajectory_id=await outside.email(run_id))).raise_for_status()
    async with outside.database() as tx:
        run = await tx.get_one(Run, run_id)
    source = StoredFeedback(outside.database, asyncio.get_running_loop(), run)
    first, *others = await asyncio.gather(*(source.evidence() for _ in range(20)))
    assert len(first) == 1
    assert all(heard is first for heard in others)


async def test_the_judge_of_a_run_hears_it(outside: Outside, data_dir: Path, database_url: str) -> None:
    run_id = await make_run(outside.database)
    (await outside.post(type="opportunity", trajectory_id=await outside.email(run_id))).raise_for_status()
    async with outside.database() as tx:
        run = await tx.get_one(Run, run_id)
    home, environment = asyncio.get_running_loop(), SalesEmail()
    services = judge_services(settings_for(data_dir, database_url), outside.database, home, run, environment)
    judge = learnloop_service.judges.registry.build("feedback", {}, services)
    [scenario] = environment.scenarios("train", 1, seed=0)
    # A run is judged on a thread and a loop of its own.
    judged = await run_in_thread(lambda: judge.judge(scenario, [Candidate("new", email(), [])]), "judging")
    assert judged.scores[0].value == pytest.approx(0.8)


async def test_without_the_database_there_is_no_evidence(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    async with outside.database() as tx:
        run = await tx.get_one(Run, run_id)
    nowhere = make_engine(parse_url("postgresql://nobody@127.0.0.1:9/nothing"))
    assert await StoredFeedback(make_database(nowhere), asyncio.get_running_loop(), run).evidence() == ()
    await nowhere.dispose()


TYPES = st.sampled_from((*ONLINE, "thumbs_up", "thumbs_down", "preferred"))
EVENTS = st.lists(st.tuples(TYPES, st.integers(0, 1), st.floats(0, 1, exclude_min=True)), min_size=1, max_size=8)


ROUNDED = [("thumbs_up", 0, 1.0), *[("thumbs_up", 0, 1e-16)] * 7]
"""Weights whose sum as floats depends on their order."""


@given(events=EVENTS, order=st.randoms(use_true_random=False), cut=st.integers(1, 8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(events=ROUNDED, order=Random(0), cut=4)
async def test_neither_order_nor_repetition_changes_the_evidence(
    outside: Outside, events: list[tuple[str, int, float]], order: Any, cut: int
) -> None:
    """The same events in order, and shuffled in two requests of which one is sent twice."""
    heard = []
    for shuffled in (False, True):
        run_id = await make_run(outside.database, graph=str(ULID()))
        emails = [await outside.email(run_id), await outside.email(run_id)]
        posted = [_event(f"{run_id}-{n}", emails, *event) for n, event in enumerate(events)]
        if shuffled:
            order.shuffle(posted)
            await outside.batch(*posted[:cut])
        await outside.batch(*posted)
        by_email = await outside.evidence(run_id)
        heard.append([(figures.online, figures.wins, figures.losses) for id in emails if (figures := by_email.get(id))])
    assert heard[0] == heard[1]
    reached = [ONLINE[type] for type, which, _ in events if type in ONLINE and which == 0]
    assert (heard[0][0][0] if reached else None) == max(reached, default=None)


def _event(id: str, emails: list[str], type: str, which: int, confidence: float) -> dict[str, Any]:
    event: dict[str, Any] = {"event_id": id, "type": type, "trajectory_id": emails[which]}
    if type == "preferred":
        event["over"] = emails[1 - which]
    return event if type in ONLINE else event | {"confidence": confidence}


USER = {"user": "customer 17", "model": "mail/live"}


async def _promoted(outside: Outside, project: str = "mail") -> None:
    promotion = Promotion(project=project, name="live", backend="embedded", model_name="a", step=1, actor="local")
    async with outside.database.begin() as tx:
        tx.add(promotion)


async def _rows(outside: Outside) -> list[Feedback]:
    async with outside.database() as tx:
        return list((await tx.execute(select(Feedback).order_by(Feedback.event_id))).scalars())


async def test_of_a_user_only_a_hash_is_stored(outside: Outside, capfd: pytest.CaptureFixture[str]) -> None:
    await _promoted(outside)
    outcome = USER | {"type": "outcome", "name": "resolved", "value": 0.5}
    accepted = await outside.post(event_id="1", **outcome)
    assert accepted.json() == {"accepted": 1, "duplicates": 0, "rejected": [], "links": {}}
    assert (await outside.post(event_id="1", **outcome)).json()["duplicates"] == 1
    assert (await outside.post(event_id="2", type="call_booked", **USER)).json()["accepted"] == 1
    for other in ({"user": "customer 18"}, {"value": 0.75}, {"name": "rated"}):
        detail = _problem(await outside.post(event_id="1", **outcome | other), 409)
        [field] = other
        assert detail == f"Event '1' was already sent with a different {field}."
        assert "customer" not in detail

    first, second = await _rows(outside)
    assert (first.project, first.asked_as, first.outcome_name, first.value) == ("mail", "mail/live", "resolved", 0.5)
    assert len(first.user_hash or "") == 64
    assert second.user_hash == first.user_hash
    async with outside.database() as tx:
        dump = (await tx.execute(text("SELECT string_agg(feedback::text, ' ') FROM feedback"))).scalar_one()
    assert "customer" not in dump
    assert "customer" not in "".join(capfd.readouterr())


async def test_feedback_on_a_user_needs_a_name_that_was_promoted(outside: Outside) -> None:
    await _promoted(outside)
    unknown = await outside.post(type="thumbs_up", user="customer 17", model="mail/other")
    assert _problem(unknown, 404) == "No checkpoint was ever promoted to 'mail/other'."
    batch = await outside.batch({"type": "thumbs_up", **USER}, {"type": "thumbs_up", **USER, "model": "mail/other"})
    assert (batch["accepted"], [rejection["index"] for rejection in batch["rejected"]]) == (1, [1])


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"type": "thumbs_up", "user": "a"}, "give either trajectory_id, or session_id, or both run_id and"),
        ({"type": "thumbs_up", "model": "mail/live"}, "or both user and model"),
        ({"type": "thumbs_up", "user": "a", "model": "mail/live", "session_id": "b"}, "or both user and model"),
        ({"type": "thumbs_up", "user": "a", "model": "mail/live@2"}, "should match pattern"),
        ({"type": "preferred", "over": "b", **USER}, "it cannot be about a user"),
        ({"type": "outcome", "name": "resolved", **USER}, "`name` and `value` are required for `outcome`"),
        ({"type": "outcome", "value": 1, **USER}, "`name` and `value` are required for `outcome`"),
        ({"type": "thumbs_up", "value": 1, **USER}, "not allowed for other types"),
        ({"type": "outcome", "name": "resolved", "value": 1.5, **USER}, "less than or equal to 1"),
        ({"type": "withdrawn", **USER}, "`withdraws` (the id of another event) is required for `withdrawn`"),
        ({"type": "thumbs_up", "withdraws": "1", **USER}, "not allowed for other types"),
        ({"type": "withdrawn", "event_id": "1", "withdraws": "1", **USER}, "an event cannot withdraw itself"),
    ],
)
async def test_a_malformed_event_is_explained(outside: Outside, event: dict[str, Any], why: str) -> None:
    refused = await outside.post(**event)
    assert why in refused.text, refused.text
    assert refused.status_code == 422
    assert "customer" not in refused.text


async def test_a_withdrawn_event_is_not_evidence(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    liked, other = await outside.email(run_id), await outside.email(run_id)
    await outside.post(event_id="1", type="thumbs_up", trajectory_id=liked)
    await outside.post(event_id="2", type="closed_won", trajectory_id=liked, occurred_at="2026-03-14T09:30:00Z")
    await outside.post(event_id="3", type="preferred", trajectory_id=liked, over=other)
    await outside.post(event_id="4", type="outcome", name="resolved", value=1, trajectory_id=other)
    [before, beaten] = await outside.items(run_id, "/emails")
    assert (before["wins"], before["online"], beaten["losses"]) == (2.0, 1.0, 1.0)
    assert len(await outside.items(run_id)) == 4

    # The first withdrawal comes before a repetition of what it withdraws, under another id.
    assert (await outside.post(type="withdrawn", withdraws="2", trajectory_id=liked)).json()["accepted"] == 1
    await outside.post(event_id="2 again", type="closed_won", trajectory_id=liked, occurred_at="2026-03-14T09:30:00Z")
    await outside.post(type="withdrawn", withdraws="3", trajectory_id=liked)
    [after] = await outside.items(run_id, "/emails")
    assert (after["trajectory_id"], after["wins"], after["online"]) == (liked, 1.0, None)
    evidence = await outside.evidence(run_id)
    assert [(id, figures.wins, figures.losses, figures.online) for id, figures in evidence.items()] == [
        (liked, 1.0, 0.0, None)
    ]
    listed = await outside.items(run_id)
    assert [(event["event_id"], event["name"], event["value"]) for event in listed] == [
        ("4", "resolved", 1.0),
        ("1", None, None),
    ]


async def test_a_withdrawal_has_the_subject_of_what_it_withdraws(outside: Outside) -> None:
    one, other = await outside.email(), await outside.email()
    await outside.post(event_id="1", type="thumbs_up", trajectory_id=one)
    elsewhere = await outside.post(type="withdrawn", withdraws="1", trajectory_id=other)
    assert "is about something else" in _problem(elsewhere, 422)
    await outside.post(event_id="2", type="withdrawn", withdraws="1", trajectory_id=one)
    withdrawal = await outside.post(type="withdrawn", withdraws="2", trajectory_id=one)
    assert "which cannot be withdrawn" in _problem(withdrawal, 422)


async def test_an_early_withdrawal_with_another_subject_has_no_effect(outside: Outside) -> None:
    run_id = await make_run(outside.database)
    one, other = await outside.email(run_id), await outside.email(run_id)
    await outside.post(type="withdrawn", withdraws="1", trajectory_id=other)
    await outside.post(event_id="1", type="thumbs_up", trajectory_id=one)
    assert [event["event_id"] for event in await outside.items(run_id)] == ["1"]
