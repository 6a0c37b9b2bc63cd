"""Deleting a user: the database is then as if the user had never been there, and what cannot be undone is named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
from sqlalchemy import URL, cast, func, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import JSONB

from learnloop_service.app.datasets import rows
from learnloop_service.app.datasets.rows import NewVersion
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Base, Document, RolloutRecord, Run, Trajectory, UserScenario
from learnloop_service.app.operations.delete_user import UserDataDeletion
from tests.fakes.crashes import Crashes, Died
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fixtures import MIGRATED
from tests.fixtures import database as copied
from tests.integration.app.served import served, settings_for
from tests.integration.app.user_data import SECRET, everything, hash_of
from tests.opened_database import opened_database

_VOLATILE = {"created_at", "received_at", "begun_at", "opened_at", "seq", "pruned", "salt"}


async def _contents(database: Database) -> Mapping[str, Any]:
    """All rows of all tables, without what differs between two runs of the same test."""
    contents = {}
    async with database() as tx:
        for table in Base.metadata.sorted_tables:
            columns = [column for column in table.columns if column.name not in _VOLATILE]
            contents[table.name] = sorted(map(repr, await tx.execute(select(*columns))))
    return contents


async def _mentions(database: Database, word: str) -> list[str]:
    """Names of the tables with a row that contains the word."""
    async with database() as tx:
        names = []
        for table in Base.metadata.sorted_tables:
            query = text(f'SELECT count(*) FROM "{table.name}" t WHERE t::text LIKE :word')
            if (await tx.execute(query, {"word": f"%{word}%"})).scalar_one():
                names.append(table.name)
    return names


async def _delete(client: httpx.AsyncClient, user: str, **more: Any) -> Any:
    return (await client.post("/users/delete", json={"user": user, **more})).raise_for_status().json()


async def test_nothing_is_left_of_a_user(data_dir: Path, database_url: str, database: Database, postgres: URL) -> None:
    await everything(database, "alice", "bob")
    async with copied(postgres, MIGRATED) as url, opened_database(url) as without:
        await everything(without, "bob")
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
    after = await _contents(database)
    assert {name: rows for name, rows in after.items() if rows != expected[name]} == {}


async def test_demonstrations_from_rollouts_go_with_the_user(
    data_dir: Path, database_url: str, database: Database
) -> None:
    await everything(database, "alice", "bob")
    async with database.begin() as tx:
        question = cast(literal('[{"role": "user", "content": "Why?"}]'), JSONB)
        answer = func.jsonb_build_array(func.jsonb_build_object("role", "assistant", "content", Trajectory.scenario_id))
        values = {"messages": question.op("||")(answer), "reward": 1.0}
        await tx.execute(update(Trajectory).where(Trajectory.run_id == "nightly").values(values))
    async with served(settings_for(data_dir, database_url, secret_key=SECRET), ScriptedLoop()) as client:

        async def store(name: str) -> Any:
            body = {"name": name, "min_reward": 0.5}
            return (await client.post("/runs/nightly/demonstrations", json=body)).raise_for_status().json()

        stored = await store("best")
        assert (stored["count"], await store("best") | {"version": 1}) == (2, stored | {"created_at": ANY})
        gone = await _delete(client, "alice", project="sales")
        assert gone["deleted"].get("demonstrations", 0) == 0
        gone = await _delete(client, "alice")
        assert (gone["deleted"]["demonstrations"], gone["remaining"]) == (1, [])
        [demonstration] = (await client.get(stored["links"]["self"])).json()["demonstrations"]
        assert demonstration["messages"][-1]["content"] == "session.bob"
        assert (await client.get("/demonstrations")).json()["items"][0]["count"] == 1
    assert await _mentions(database, "alice") == []
    assert await _mentions(database, hash_of("alice")) == []


async def test_what_is_left_in_other_sets_is_named(data_dir: Path, database_url: str, database: Database) -> None:
    await everything(database, "alice", "bob")
    shared, older, others = "7" * 64, "8" * 64, "9" * 64
    async with database.begin() as tx:
        talk = {"messages": [{"role": "user", "content": "alice says"}]}
        for project, sha256, id in (
            ("*", shared, {"id": "demonstration.t.1"}),
            ("mail", older, {}),
            ("mail", others, {}),
        ):
            row = {"project": project, "sha256": sha256, "kind": "demonstrations", "content": [talk | id]}
            await tx.execute(insert(Document), [row])
        link = {"project": "*", "sha256": shared, "scenario_id": "demonstration.t.1", "user_hash": hash_of("alice")}
        await tx.execute(insert(UserScenario), [link])
        for sha256, run_id in ((older, "nightly"), (others, "other")):
            origin = {"source": "run", "run_id": run_id}
            await rows.add(tx, NewVersion("mail", "demonstrations", run_id, sha256, 1, "", origin=origin))
    async with served(settings_for(data_dir, database_url, secret_key=SECRET), ScriptedLoop()) as client:
        gone = await _delete(client, "alice", project="mail")
        assert gone["remaining"] == [f"/demonstrations/{shared}", f"/demonstrations/{older}"]
        again = await _delete(client, "alice")
        assert (again["deleted"]["demonstrations"], again["remaining"]) == (1, [])


async def test_what_a_live_run_needs_stays_until_it_has_ended(
    data_dir: Path, database_url: str, database: Database
) -> None:
    await everything(database, "alice", "bob")
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
    await everything(database, "alice", "bob")
    engine = make_engine(parse_url(database_url))
    crashes, dying = Crashes(engine), make_database(engine)
    deaths = 0
    while True:
        deletion = UserDataDeletion(dying, tmp_path, hash_of("alice"), None)
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
