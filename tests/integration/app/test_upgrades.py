"""A database of every earlier revision, with rows in every state, under today's service.

`revisions/NNNN.sql` holds what the services of that revision wrote, by hand. A revision that adds a table or a
state gets a file too.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.datasets.documents import stored_text
from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.db.migration import SchemaError, migrate, newest, scripts
from learnloop_service.app.db.tables import Journal, Run
from learnloop_service.app.worker.journal_store import StoredJournal
from learnloop_service.environment.base import Scenario
from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.journal import load_rollout
from tests.conditions import until
from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import learnloop
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop, ScriptedPolicy
from tests.fakes.webhook_receiver import receiver
from tests.integration.app.keyed import bearer
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.served_processes import NO_ENGINE, process_environment

FILES = sorted((Path(__file__).parent / "revisions").glob("*.sql"))
OLD_KEY, REVOKED_KEY = "ll_" + "K" * 43, "ll_" + "R" * 43
STEPS = {"model-1R": 1, "model-1F": 1, "model-1X": 0, "model-1C": 3}
"""Of the models that the fixtures' runs have trained so far."""
_DROPPED = {"run": {"baseline_key", "baseline_run_id"}}
"""Columns by table that a later revision drops together with what used them."""
Rows = dict[str, list[dict[str, Any]]]


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()))
    config.attributes["connection"] = connection
    return config


REVISIONS = sorted(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _upgrade(connection: Connection, revision: str) -> None:
    command.upgrade(_config(connection), revision)


def _id(mark: str) -> str:
    return "01JA" + "0" * 20 + mark


@pytest.fixture(params=[file.stem for file in FILES])
async def old(request: pytest.FixtureRequest, empty_database_url: str) -> AsyncIterator[AsyncEngine]:
    """A database as the services up to that revision left it."""
    engine = make_engine(parse_url(empty_database_url))
    async with engine.begin() as connection:
        for file in FILES:
            if file.stem <= request.param:
                await connection.run_sync(_upgrade, file.stem)
                await connection.exec_driver_sql(file.read_text())
        await connection.exec_driver_sql("DROP FUNCTION request_of")
    yield engine
    await engine.dispose()


async def _rows(engine: AsyncEngine) -> Rows:
    async with engine.connect() as connection:
        names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
        tables = (await connection.execute(text(names))).scalars().all()
        return {
            name: list((await connection.execute(text(f'SELECT to_jsonb(t) FROM "{name}" t'))).scalars())
            for name in tables
        }


async def test_nothing_is_lost_and_the_schema_is_todays(old: AsyncEngine) -> None:
    before = await _rows(old)
    assert sum(map(len, before.values())) > 40
    await asyncio.gather(*(migrate(old) for _ in range(2)))  # two replicas at once
    _check_all_kept(before, await _rows(old))
    async with old.begin() as connection:
        await connection.run_sync(lambda c: command.check(_config(c)))
        versions = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalars().all()
    assert versions == REVISIONS[-1:] == [newest()]


@pytest.mark.parametrize("old", [FILES[-1].stem], indirect=True)
async def test_no_revision_takes_what_the_one_before_it_had(old: AsyncEngine) -> None:
    """So a database of any revision comes to today's whole: from each on, the way is the same."""
    before = await _rows(old)
    for revision in REVISIONS[REVISIONS.index(FILES[-1].stem) + 1 :]:
        async with old.begin() as connection:
            await connection.run_sync(_upgrade, revision)
        after = await _rows(old)
        _check_all_kept(before, after)
        before = after


@pytest.mark.parametrize("old", [FILES[-1].stem], indirect=True)
async def test_a_request_that_chose_about_reused_baselines_can_still_be_forked(old: AsyncEngine) -> None:
    async with old.begin() as connection:
        await connection.execute(text("""UPDATE run SET request = request || '{"reuse_baseline": true}'"""))
    await migrate(old)
    assert not any("reuse_baseline" in row["request"] for row in (await _rows(old))["run"])


def _check_all_kept(before: Rows, after: Rows) -> None:
    for table, rows in before.items():
        assert len(after[table]) == len(rows), table
        for row in rows:
            columns = {name: value for name, value in row.items() if name not in _DROPPED.get(table, ())}
            assert any(columns.items() <= new.items() for new in after[table]), (table, row)


@pytest.mark.long
async def test_todays_service_goes_on_where_the_old_one_was(old: AsyncEngine, data_dir: Path) -> None:
    before = await _rows(old)
    runs = {row["id"]: row for row in before["run"]}
    async with receiver() as frontend:
        async with old.begin() as connection:
            for table in ("webhook_delivery", "webhook_endpoint"):
                if table in before:
                    await connection.execute(text(f"UPDATE {table} SET url = :url"), {"url": frontend.url})
        settings = settings_for(
            data_dir,
            old.url.render_as_string(hide_password=False),
            allowed_private_hosts="127.0.0.0/8",
            max_concurrent_runs=8,
            require_keys="never",  # the old database holds keys
        )
        async with served(settings, ScriptedLoop(), _trained()) as client:
            for verb, status in (("resume", "paused"), ("retry", "failed")):
                for run_id in (id for id, row in runs.items() if row["status"] == status):
                    assert (await client.post(f"/runs/{run_id}/{verb}")).status_code == 202
            ends = {id: "cancelled" if row["status"] == "cancelled" else "completed" for id, row in runs.items()}
            for run_id, end in ends.items():
                run = await run_with(client, run_id, "completed", "failed", "cancelled")
                assert (run["status"], run["error"]) == (end, None)
                iteration_count = 1 if end == "cancelled" else 4
                assert [point["iteration"] for point in run["iterations"]] == list(range(iteration_count))
            listed = (await client.get("/runs", params={"limit": 200})).json()["items"]
            assert {run["run_id"] for run in listed} == set(runs)
            whole = (await client.get(f"/trajectories/trajectory-{_id('1C')}-1")).json()
            assert whole["messages"][1]["content"] == "7, naïvely"
            await until(lambda: len(frontend.received) >= (1 if "webhook_endpoint" not in before else 2))
        assert {"type": "iteration.completed", "run_id": _id("1C")} in frontend.bodies()
    after = await _rows(old)
    for table in ("iteration", "checkpoint", "event"):
        keys = Counter((row["run_id"], row.get("iteration"), row.get("step"), row.get("seq")) for row in after[table])
        assert set(keys.values()) == {1}, table


def _trained() -> ScriptedBackend:
    """The engine that the old service's runs were trained on."""
    backend = ScriptedBackend()
    for name, step in STEPS.items():
        model = ModelSpec("mail", name, "learnloop/tiny")
        backend.policies[model] = ScriptedPolicy(model, "http://127.0.0.1:9/v1")
        backend.policies[model]._step = step
    return backend


@pytest.mark.parametrize("old", ["0003"], indirect=True)
async def test_old_journals_documents_and_keys_are_still_read(old: AsyncEngine, data_dir: Path) -> None:
    await migrate(old)
    database = make_database(old)
    journal = StoredJournal(database, Lease(Run, _id("3R"), 4, "gone:3"), asyncio.get_running_loop(), lambda: None)
    entries = await journal.kept(1)
    assert entries.keys() == {"rollout/train/0", "train.intent"}
    rollout = load_rollout(Scenario("train:1", "train", {}, {}), entries["rollout/train/0"])
    reply: Any = rollout.trajectory.messages_and_choices[1]
    assert (rollout.id, reply.logprobs.content[0].logprob) == ("kept-rollout", -0.5)
    async with database() as tx:
        assert len((await tx.execute(select(Journal))).scalars().all()) == 2
    async with database() as tx:
        graph, free = (await tx.execute(text("SELECT sha256 FROM document ORDER BY sha256 DESC"))).scalars()
    for project in ("mail", None):
        assert await stored_text(database, project, "graph", graph)
    assert await stored_text(database, "other", "scenarios", free)
    settings = settings_for(
        data_dir, old.url.render_as_string(hide_password=False), require_keys="always", max_concurrent_runs=0
    )
    async with served(settings, ScriptedLoop()) as client:
        assert (await client.get(f"/runs/{_id('3R')}", headers=bearer(OLD_KEY))).status_code == 200
        assert (await client.get(f"/runs/{_id('3R')}", headers=bearer(REVOKED_KEY))).status_code == 401


async def test_an_old_worker_refuses_a_new_schema_and_says_so(empty_database_url: str, data_dir: Path) -> None:
    engine = make_engine(parse_url(empty_database_url))
    await migrate(engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match="newer"):
        await migrate(engine)
    await engine.dispose()
    worker = await asyncio.create_subprocess_exec(
        *learnloop("worker"),
        env=process_environment(data_dir, DATABASE_URL=empty_database_url, **NO_ENGINE) | {"PYTHONPATH": str(ROOT)},
        cwd="/",
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await worker.communicate()
    assert worker.returncode == 1
    assert b"newer" in errors.splitlines()[-1]
    assert b"Traceback" not in errors
