"""Deleting a user: the database is then as if the user had never been there, and what cannot be undone is named."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import URL, insert, select, text, update

from app.db.database import Database, make_database, make_engine, parse_url
from app.db.tables import (
    AgentSession,
    Base,
    Checkpoint,
    Document,
    Feedback,
    Promotion,
    Release,
    ReleaseObservation,
    ReleaseUnit,
    RolloutRecord,
    Run,
    SessionCall,
    Trajectory,
    UserScenario,
)
from app.operations.delete_user import UserDeletion
from app.security.user_hash import UserHasher
from tests.conftest import MIGRATED
from tests.conftest import database as copied
from tests.fakes.crashes import Crashes, Died
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

SECRET = "a key for tests, of 32 characters"
SHA = "5" * 64
WHEN = datetime(2026, 3, 14, 2, tzinfo=UTC)
_VOLATILE = {"created_at", "received_at", "begun_at", "opened_at", "seq", "pruned", "salt"}


def hash_of(user: str) -> str:
    """The service's hash of a user's key."""
    return UserHasher(SECRET.encode()).hash_of(user)


def _id(prefix: str, user: str) -> str:
    return f"{prefix}{user}".ljust(26, "0")


async def _everything(database: Database, *users: str, project: str = "mail") -> None:
    """Let each user have asked, been asked about, been part of a release, and become a task of a run that ended."""
    async with database.begin() as tx:
        stable = {"project": project, "name": "live", "backend": "embedded", "model_name": "m", "step": 1}
        await tx.execute(insert(Promotion), [stable | {"actor": "local"}])
        promotion_id = (await tx.execute(select(Promotion.id))).scalar_one()
        arms = {"state": "rolled_back", "salt": b"0", "unit": "user", "share": 0.05, "rules": {}, "baseline": {}}
        candidate = {"backend": "embedded", "model_name": "m", "step": 2, "actor": "local"}
        names = {"id": "release", "project": project, "name": "live", "promotion_id": promotion_id}
        await tx.execute(insert(Release), [names | arms | candidate])
        for id, name, base in (
            ("nightly", "nightly-1", "learnloop/tiny"),
            ("heir", "nightly-2", f"{project}/nightly-1@1"),
            ("other", "other", "learnloop/tiny"),
        ):
            await tx.execute(insert(Run), [_run(id, name, base, project, SHA if id == "nightly" else "6" * 64)])
            steps = [{"run_id": id, "step": step, "iteration": step, "is_best": False} for step in (0, 1)]
            await tx.execute(insert(Checkpoint), steps)
        rows = [{"id": f"session.{user}", "split": "train", "task": {"messages": [f"{user} says"]}} for user in users]
        await tx.execute(insert(Document), [{"project": project, "sha256": SHA, "kind": "scenarios", "content": rows}])
        for user in users:
            await _one(tx, user, project)


async def _one(tx: Any, user: str, project: str) -> None:
    who = {"user_hash": hash_of(user), "may_train": True}
    session = {"id": _id("S", user), "project": project, "asked_model": "live", "model": "mail/m@1", "step": 1}
    limits = {"backend": "embedded", "seed": 1, "explicit_restart": False, "expires_at": WHEN, "metadata": {}}
    await tx.execute(
        insert(AgentSession.__table__),
        [session | limits | who | {"state": "ended", "outcome": {"output": user}, "warnings": []}],
    )
    call = {"session_id": session["id"], "number": 1, "digest": "d", "occurrence": 0, "protocol": "chat"}
    await tx.execute(insert(SessionCall), [call | {"request": user.encode(), "seed": 1}])
    for id, more in (
        (f"ask-{user}", {"kind": "ask", "project": project, "asked_as": f"{project}/live", **who}),
        (f"rollout-{user}", {"kind": "train", "run_id": "nightly", "iteration": 1}),
    ):
        await tx.execute(insert(Trajectory), [_trajectory(id, user) | more])
    for number, about in enumerate(
        ({"session_id": session["id"]}, {"trajectory_id": f"ask-{user}"}, {"user_hash": who["user_hash"]})
    ):
        said = {"id": _id(f"F{number}", user), "project": project, "event_id": f"{user}{number}", "comment": user}
        await tx.execute(
            insert(Feedback),
            [said | about | {"type": "thumbs_up", "confidence": 1, "source": "api", "occurred_at": WHEN}],
        )
    unit = {"release_id": "release", "unit": who["user_hash"], "arm": "stable", "probability": 0.5, "stage": 0}
    await tx.execute(insert(ReleaseUnit), [unit | {"exposed_at": WHEN}])
    await tx.execute(insert(ReleaseObservation), [unit | {"values": {}, "observed_at": WHEN}])
    link = {"project": project, "sha256": SHA, "scenario_id": f"session.{user}", "user_hash": who["user_hash"]}
    await tx.execute(insert(UserScenario), [link])


def _run(id: str, name: str, base: str, project: str, sha256: str) -> dict[str, Any]:
    request = {"environment": {"name": "agent", "config": {"scenarios": {"sha256": sha256, "count": 2}}}}
    return {
        "id": id,
        "status": "completed",
        "request": request,
        "environment": "agent",
        "judge": "ruler",
        "backend": "embedded",
        "model_project": project,
        "model_name": name,
        "base_model": base,
        "iterations_total": 1,
    }


def _trajectory(id: str, user: str) -> dict[str, Any]:
    figures = {"turns": 1, "prompt_tokens": 1, "completion_tokens": 1, "seconds": 1.0, "started_at": WHEN}
    documents = {"scenario": {"task": user}, "messages": [user], "tools": [], "outcome": {"answer": user}}
    plain = {"split": "train", "mode": "sampled", "model": "mail/m", "scenario_id": f"session.{user}"}
    return {"id": id, "score_parts": {}, "reward_parts": {}} | plain | documents | figures


async def _contents(database: Database) -> Mapping[str, Any]:
    """All rows of all tables, without what differs between two runs of the same test."""
    found = {}
    async with database() as tx:
        for table in Base.metadata.sorted_tables:
            columns = [column for column in table.columns if column.name not in _VOLATILE]
            found[table.name] = sorted(map(repr, await tx.execute(select(*columns))))
    return found


async def _mentions(database: Database, word: str) -> list[str]:
    """Names of the tables with a row that contains the word."""
    async with database() as tx:
        found = []
        for table in Base.metadata.sorted_tables:
            query = text(f'SELECT count(*) FROM "{table.name}" t WHERE t::text LIKE :word')
            if (await tx.execute(query, {"word": f"%{word}%"})).scalar_one():
                found.append(table.name)
    return found


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with _opened(database_url) as opened:
        yield opened


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Database]:
    engine = make_engine(parse_url(url))
    yield make_database(engine)
    await engine.dispose()


async def _delete(client: httpx.AsyncClient, user: str, **more: Any) -> Any:
    return (await client.post("/users/delete", json={"user": user, **more})).raise_for_status().json()


async def test_nothing_is_left_of_a_user(data_dir: Path, database_url: str, database: Database, postgres: URL) -> None:
    await _everything(database, "alice", "bob")
    async with copied(postgres, MIGRATED) as url, _opened(url) as without:
        await _everything(without, "bob")
        expected = await _contents(without)
    tables = {*await _mentions(database, "alice"), *await _mentions(database, hash_of("alice"))}
    assert tables >= {"trajectory", "agent_session", "feedback", "release_unit", "release_observation", "document"}
    async with served(settings_for(data_dir, database_url, secret_key=SECRET), ScriptedLoop()) as client:
        before = data_dir / "runs" / "nightly" / "results"
        before.mkdir(parents=True)
        assert (await _delete(client, "alice", project="sales"))["deleted"].get("sessions", 0) == 0
        gone = await _delete(client, "alice")
        assert gone["deleted"] == {
            "asks": 1,
            "feedback": 3,
            "release_observations": 1,
            "release_units": 1,
            "rollouts": 1,
            "scenarios": 1,
            "sessions": 1,
        }
        assert gone["trained_checkpoints"] == ["mail/nightly-1@1", "mail/nightly-2@0", "mail/nightly-2@1"]
        assert gone["unfinished"] == []
        assert not before.exists()
        again = await _delete(client, "alice")
        assert (set(again["deleted"].values()), again["trained_checkpoints"]) == ({0}, [])
    assert await _mentions(database, "alice") == []
    assert await _mentions(database, hash_of("alice")) == []
    found = await _contents(database)
    assert {name: rows for name, rows in found.items() if rows != expected[name]} == {}


async def test_what_a_live_run_needs_stays_until_it_has_ended(
    data_dir: Path, database_url: str, database: Database
) -> None:
    await _everything(database, "alice", "bob")
    async with database.begin() as tx:
        await tx.execute(update(Run).where(Run.id == "nightly").values(status="paused"))
        await tx.execute(insert(RolloutRecord), [{"run_id": "nightly", "iteration": 1, "name": "r", "value": b"x"}])
    async with served(settings_for(data_dir, database_url, secret_key=SECRET), ScriptedLoop()) as client:
        first = await _delete(client, "alice")
        assert (first["unfinished"], first["deleted"]["sessions"]) == (["nightly"], 1)
        assert "scenarios" not in first["deleted"]
        assert set(await _mentions(database, "alice")) == {"document", "trajectory", "user_scenario"}
        async with database.begin() as tx:
            await tx.execute(update(Run).where(Run.id == "nightly").values(status="cancelled"))
        second = await _delete(client, "alice")
        assert (second["unfinished"], second["deleted"]["scenarios"]) == ([], 1)
        assert second["trained_checkpoints"] == first["trained_checkpoints"] != []
    assert await _mentions(database, "alice") == []
    assert (await _contents(database))["rollout_record"] == []


async def test_an_interrupted_deletion_is_completed_by_the_next_one(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    await _everything(database, "alice", "bob")
    engine = make_engine(parse_url(database_url))
    crashes, dying = Crashes(engine), make_database(engine)
    deaths = 0
    while True:
        deletion = UserDeletion(dying, tmp_path, hash_of("alice"), None)
        try:
            with crashes.after(deaths):
                await deletion.run()
            break
        except Died:
            deaths += 1
    await engine.dispose()
    assert deaths > 10
    assert await _mentions(database, "alice") == []
    assert "bob" in str(await _contents(database))
