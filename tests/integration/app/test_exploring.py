"""Sessions that explore: which, how they are sampled, what they cost, and what keeps the share."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select
from ulid import ULID

from learnloop_service.app.agent_sessions.exploring import explore_columns
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Feedback, Promotion
from learnloop_service.app.releases.assignment import assignment
from learnloop_service.environment.json_type import Json
from tests.conditions import answered
from tests.fakes.scripted_chat import scripted_chat
from tests.integration.app.agent_clients import agent, ask, recorded
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage
from tests.integration.app.released_models import PROMOTE, release_service, scripted_engine, started_release
from tests.integration.app.test_statements import statements
from tests.integration.cli.conftest import Learnloop
from tests.integration.cli.conftest import learnloop as learnloop
from tests.openai_clients import MESSAGES

LIVE = "/promotions/mail/live"
SURE: Mapping[str, Json] = {"temperature": 0, "top_p": 0.1, "seed": 7, "extra_body": {"top_k": 1, "min_p": 0.5}}
"""How clients ask for the most likely answer."""
NOW = datetime.now(UTC)


async def _explore(client: httpx.AsyncClient, share: float, name: str = "mail/live") -> Json:
    reply = await client.post(f"/promotions/{name}/explore", json={"share": share})
    return reply.raise_for_status().json()


async def _open(client: httpx.AsyncClient, **more: Json) -> Json:
    body = {"model": "mail/live", "user": "alice", "train": True} | more
    opened = (await client.post("/sessions", json=body)).raise_for_status().json()
    session = (await client.get(f"/sessions/{opened['id']}")).raise_for_status().json()
    return {**session, **opened, "owner": client.headers}


@pytest.fixture
async def live(stage: ModelStage) -> httpx.AsyncClient:
    """A client of the project `mail`, in which `live` is promoted."""
    client = stage.service.client
    client.headers.update(bearer(await stage.key()))
    (await client.post(f"/models/{CALLER}/promote", json={"step": 1, "as": "live"})).raise_for_status()
    return client


async def _of_both_sides(client: httpx.AsyncClient) -> Mapping[bool, Json]:
    """Open sessions until the coin has fallen on both sides."""
    sessions: dict[bool, Json] = {}
    while len(sessions) < 2:
        session = await _open(client)
        sessions[session["explored"]] = session
    return sessions


async def test_an_explored_session_is_sampled_from_the_models_own_distribution(
    stage: ModelStage, live: httpx.AsyncClient
) -> None:
    await _explore(live, 0.5)
    grammar: Json = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1, 2]}}}
    for explored, session in (await _of_both_sides(live)).items():
        async with agent(session) as client:
            await ask(client, **SURE)
            structured = await ask(client, **SURE, response_format=grammar, logprobs=True, top_logprobs=2)
            await client.chat.completions.create(model="any", messages=MESSAGES, max_completion_tokens=3)
        plain, formed, short = await recorded(stage, session)
        assert short["parameters"] == {"max_completion_tokens": 3} | ({"temperature": 1.0} if explored else {})
        assert structured.choices[0].message.content in ("1", "2")
        assert len(structured.choices[0].logprobs.content[0].top_logprobs) == 2
        if explored:
            assert plain["parameters"] == {"max_tokens": 8, "temperature": 1.0}
            assert formed["parameters"]["response_format"] == grammar
            assert plain["seed"] != 7
        else:
            asked = {"temperature": 0, "top_p": 0.1, "seed": 7, "top_k": 1, "min_p": 0.5, "max_tokens": 8}
            assert plain["parameters"] == asked
        tokens = plain["completion"]["choices"][0]["logprobs"]["content"]
        assert 1 <= len(tokens) <= 8


async def test_an_explored_reply_ends_where_the_model_ends_it(stage: ModelStage, live: httpx.AsyncClient) -> None:
    """Without a limit from the client there is none but the context."""
    await _explore(live, 0.5)
    session = (await _of_both_sides(live))[True]
    async with agent(session) as client:
        body: Json = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "stop": ["a", "e", " "]}
        reply = await client.chat.completions.create(**body)
    assert reply.choices[0].finish_reason in ("stop", "tool_calls")


async def test_only_consented_sessions_with_a_user_explore(stage: ModelStage, live: httpx.AsyncClient) -> None:
    await _explore(live, 0.5)
    for without in ({"train": False}, {"user": None}, {"model": f"{CALLER}@1"}, {"train": None}):
        assert [(await _open(live, **without))["explored"] for _ in range(8)] == [None] * 8, without
    tossed = await _open(live)
    assert (tossed["explored"] in (True, False), tossed["train"]) == (True, True)
    async with stage.service.database() as tx:
        row = await tx.get_one(AgentSession, tossed["id"])
    assert (row.explore_share, row.explored) == (0.5, tossed["explored"])
    await _explore(live, 0)
    assert (await _open(live))["explored"] is None
    stranger = bearer(await stage.key("sales"))
    assert (await live.post(f"{LIVE}/explore", json={"share": 0.2}, headers=stranger)).status_code == 404
    for wrong in (0.6, -0.1, None):
        assert (await live.post(f"{LIVE}/explore", json={"share": wrong})).status_code == 422
    assert (await live.post("/promotions/mail/none/explore", json={"share": 0.2})).status_code == 404


async def test_a_name_keeps_its_share(data_dir: Path, database_url: str) -> None:
    """When a person promotes another checkpoint to it, a release does, and a trial does."""
    async with scripted_chat(scripted_engine) as chat, release_service(data_dir, database_url, chat) as client:
        await _explore(client, 0.2, "learnloop/live")

        async def current() -> Json:
            return (await client.get("/promotions/learnloop/live")).raise_for_status().json()["items"][0]

        async def promoted(step: int) -> Json:
            return (await answered(current, lambda promotion: promotion["step"] == step))["explore"]

        assert "salt" not in (await current())["explore"]
        await client.post(PROMOTE, json={"step": 1, "as": "live"})
        assert (await promoted(1))["share"] == 0.2
        release = await started_release(client)
        live_one = await _explore(client, 0.1, "learnloop/live")
        assert (live_one["step"], live_one["explore"]["actor"]) == (1, "local")
        ended = await client.post(f"/releases/{release['release_id']}/promote")
        assert (ended.status_code, (await promoted(2))["share"]) == (202, 0.1)  # it was not overtaken
        await client.post(PROMOTE, json={"step": 0, "as": "live"})
        await client.post(PROMOTE, json={"step": 3, "as": "live", "if_better_than": "live"})
        assert (await promoted(3))["share"] == 0.1
        assert (await _explore(client, 0, "learnloop/live"))["explore"]["share"] == 0
        await client.post(PROMOTE, json={"step": 0, "as": "live"})
        assert (await promoted(0))["share"] == 0


def test_exploring_says_nothing_about_arms() -> None:
    """Also where the unit of the release is the session, whose id both coins are tossed with."""
    explore = {"share": 0.2, "salt": bytes(range(32)).hex()}
    counts: dict[tuple[str, bool], int] = {}
    for number in range(10_000):
        met = assignment(bytes(32), id := f"session {number}", 0.5).arm
        key = (met, explore_columns(explore, id)["explored"])
        counts[key] = counts.get(key, 0) + 1
    shares = [counts[arm, True] / (counts[arm, True] + counts[arm, False]) for arm in ("stable", "candidate")]
    assert all(0.185 < share < 0.215 for share in shares)
    assert explore_columns({**explore, "share": 0}, "session") == explore_columns(None, "session") == {}


async def _session(database: Database, number: int, *, explored: bool, content: bool, **changed: Any) -> None:
    opened = NOW - timedelta(days=8)
    row = {
        "id": str(ULID()),
        "project": "mail",
        "asked_model": ("live", "mail/live")[number % 2],
        "model": f"{CALLER}@1",
        "backend": "embedded",
        "seed": 0,
        "explicit_restart": False,
        "labels": {},
        "state": "ended",
        "opened_at": opened,
        "expires_at": opened,
        "user_hash": f"user {number}",
        "explored": explored,
        "explore_share": 0.2,
        **changed,
    }
    said = {
        "id": str(ULID()),
        "project": "mail",
        "event_id": str(ULID()),
        "type": "thumbs_up" if content else "thumbs_down",
        "confidence": 1.0,
        "source": "api",
        "occurred_at": row["opened_at"] + timedelta(hours=1),
        "received_at": row["opened_at"] + timedelta(hours=1),
        "session_id": row["id"],
    }
    async with database.begin() as tx:
        await tx.execute(insert(AgentSession), [row])
        await tx.execute(insert(Feedback), [said])


async def test_what_exploring_costs_is_said(
    stage: ModelStage, live: httpx.AsyncClient, learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = stage.service.database
    assert (await live.get(LIVE)).json()["items"][0]["explore"] is None
    for number in range(100):
        explored = number % 5 == 0
        await _session(database, number, explored=explored, content=number % (2 if explored else 4) != 0)
    await _session(database, 0, explored=True, content=False, opened_at=NOW - timedelta(days=6))  # still open
    await _session(database, 0, explored=True, content=False, asked_model="other")
    await _explore(live, 0.2)
    explore = (await live.get(LIVE)).json()["items"][0]["explore"]
    assert explore["difference"]["mean"] == pytest.approx(100 * (10 / 20 - 60 / 80))
    assert explore["difference"]["low"] < explore["difference"]["mean"] < explore["difference"]["high"]
    less = f"\N{MINUS SIGN}{-explore['difference']['mean']:.1f} points"
    assert explore["notes"][0].startswith(f"Explored sessions have {less} (95% interval ")
    assert explore["notes"][0].endswith(") of feedback, over 20 and 80 other ones.")
    assert ["temperature 0" in explore["notes"][1], "anew first" in explore["notes"][2]] == [True, True]

    monkeypatch.setenv("LEARNLOOP_API_KEY", await stage.key())
    monkeypatch.setenv("COLUMNS", "300")
    url = str(live.base_url)
    described = await asyncio.to_thread(learnloop, "promotions", "describe", "mail/live", "--url", url)
    for line in ("20% of the consented sessions explore, set by key:", *explore["notes"]):
        assert line in described.stdout
    arguments = ("explore", "mail/live", "--share", "0", "--url", url)
    off = await asyncio.to_thread(learnloop, "promotions", *arguments)
    assert off.stdout.startswith("mail/live: 0% of the consented sessions explore")


async def test_without_sessions_of_both_sides_the_price_is_not_known(
    stage: ModelStage, live: httpx.AsyncClient
) -> None:
    await _session(stage.service.database, 1, explored=True, content=True)
    await _explore(live, 0.2)
    explore = (await live.get(LIVE)).json()["items"][0]["explore"]
    assert (explore["difference"], "is not known" in explore["notes"][0]) == (None, True)


async def test_the_price_follows_the_outcome_of_the_newest_release(stage: ModelStage, live: httpx.AsyncClient) -> None:
    body = {"step": 0, "skip_trial": True, "outcome": {"session_reward": [0, 2]}, "window_hours": 24}
    (await live.post(f"{LIVE}/releases", json=body)).raise_for_status()
    for number in range(40):
        ended = {"ended_at": NOW - timedelta(days=7, hours=23), "outcome": {"reward": float(number % 2)}}
        await _session(stage.service.database, number, explored=number % 4 == 0, content=True, **ended)
    await _explore(live, 0.2)
    explore = (await live.get(LIVE)).json()["items"][0]["explore"]
    assert explore["difference"]["mean"] == pytest.approx(-100 * (20 / 30) / 2, abs=0.1)
    assert "of session reward, over 10 and 30 other ones" in explore["notes"][0]


async def test_the_coin_costs_no_statement(live: httpx.AsyncClient) -> None:
    await _open(live)
    counts = {}
    for share in (0.0, 0.5):
        await _explore(live, share)
        for _ in range(4):
            with statements() as executed:
                (
                    await live.post("/sessions", json={"model": "mail/live", "user": "a", "train": True})
                ).raise_for_status()
            counts[share] = len(executed)
    assert counts[0.0] == counts[0.5] > 0


async def test_the_salt_is_kept_by_promotions(stage: ModelStage, live: httpx.AsyncClient) -> None:
    async def salts() -> list[str]:
        async with stage.service.database() as tx:
            rows = (await tx.execute(select(Promotion.explore).order_by(Promotion.id))).scalars()
            return [explore["salt"] for explore in rows if explore is not None]

    await _explore(live, 0.3)
    await live.post(f"/models/{CALLER}/promote", json={"step": 0, "as": "live"})
    [first, second] = await salts()
    assert (first, len(first)) == (second, 64)
