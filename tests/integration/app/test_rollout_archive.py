"""Exact samples of a saved iteration are archived, byte for byte as in the journal."""

import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.operations.prune import prune
from learnloop_service.environment.base import Scenario
from learnloop_service.training.journal import load_rollout
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.served import run_with, served, settings_for

RUN = {
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 2,
    "evaluation": {"every": 1, "scenarios": 1, "test_scenarios": 1, "samples": 1},
}
ANSWER = json.dumps({"answer": "no idea", "sources": ["x"]})
REPLY = Reply((("return_final_answer", ANSWER),), tokens=(11, 7, 3))
_OF_BASELINE = {"rollout/validation.sampled/0", "rollout/validation.greedy/0"}
_TRAIN = {f"rollout/train/{number}" for number in range(4)}


@asynccontextmanager
async def _service(data_dir: Path, database_url: str) -> AsyncIterator[tuple[httpx.AsyncClient, Database]]:
    """A service whose journal's deleted entries are recorded in the table `deleted`."""
    engine = make_engine(parse_url(database_url))
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE deleted AS SELECT * FROM journal"))
        records = "BEGIN INSERT INTO deleted VALUES (OLD.*); RETURN OLD; END"
        await connection.execute(text(f"CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$ {records} $$"))
        await connection.execute(
            text("CREATE TRIGGER record BEFORE DELETE ON journal FOR EACH ROW EXECUTE FUNCTION record()")
        )

    async def answer(_: Any) -> Reply:
        return REPLY

    try:
        async with scripted_chat(answer) as chat:
            backend = ScriptedBackend(chat.url)
            async with served(settings_for(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
                yield client, make_database(engine)
    finally:
        await engine.dispose()


async def _run(client: httpx.AsyncClient, **more: Any) -> str:
    accepted = (await client.post("/learn-loop", json=RUN | more)).raise_for_status().json()
    run = await run_with(client, accepted["run_id"], "completed", "failed")
    assert run["status"] == "completed", run["error"]
    return str(run["run_id"])


async def _rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    query = text(f"SELECT run_id, iteration, name, value, checksum FROM {table} WHERE name LIKE 'rollout/%'")
    async with database() as tx:
        return sorted(map(tuple, (await tx.execute(query)).all()))


async def test_rollouts_move_from_the_journal_to_the_archive(data_dir: Path, database_url: str) -> None:
    async with _service(data_dir, database_url) as (client, database):
        run_id = await _run(client)
        archived = await _rows(database, "rollout_record")
        assert archived == await _rows(database, "deleted")
        names = {number: {name for _, at, name, *_ in archived if at == number} for number in range(3)}
        assert names[1] == _TRAIN | _OF_BASELINE
        assert names[0] - {f"rollout/test.{mode}/0" for mode in ("sampled", "greedy")} == _OF_BASELINE
        for _, iteration, name, value, checksum in archived:
            assert checksum == zlib.crc32(value, zlib.crc32(f"{run_id}/{iteration}/{name}".encode()))
        async with database() as tx:
            stored_rows = await tx.execute(text("SELECT id, scenario_id FROM trajectory WHERE kind = 'train'"))
            scenarios = {row.id: row.scenario_id for row in stored_rows}
        train = [zlib.decompress(value).decode() for _, _, name, value, _ in archived if name in _TRAIN]
        assert {json.loads(document)["id"] for document in train} == scenarios.keys()
        for document in train:
            scenario = Scenario(scenarios[json.loads(document)["id"]], "train", {}, {})
            choice: Any = load_rollout(scenario, document).trajectory.messages_and_choices[-1]
            assert [token.token for token in choice.logprobs.content] == [f"token_id:{id}" for id in REPLY.tokens]


@pytest.mark.parametrize(("keep", "kept"), [(None, True), (True, True), (False, False)])
async def test_a_request_decides_whether_rollouts_are_kept(
    data_dir: Path, database_url: str, keep: bool | None, kept: bool
) -> None:
    async with _service(data_dir, database_url) as (client, database):
        run_id = await _run(client, keep_rollouts=keep, iterations=1)
        assert (await client.get(f"/runs/{run_id}")).json()["request"]["keep_rollouts"] is kept
        assert bool(await _rows(database, "rollout_record")) is kept
        async with database() as tx:
            assert not (await tx.execute(text("SELECT name FROM journal"))).all()


@pytest.mark.parametrize(
    ("days", "pruned"),
    [
        ({}, set()),
        ({"keep_rollouts_days": 7}, {"rollouts"}),
        ({"keep_trajectories_days": 7}, {"rollouts", "trajectories"}),
        ({"keep_rollouts_days": 9, "keep_trajectories_days": 7}, {"trajectories"}),
    ],
)
async def test_the_archive_has_its_own_age_and_goes_with_its_run(
    data_dir: Path, database_url: str, days: dict[str, int], pruned: set[str]
) -> None:
    async with _service(data_dir, database_url) as (client, database):
        run_id = await _run(client, iterations=1)
        async with database.begin() as tx:
            await tx.execute(text("UPDATE run SET finished_at = finished_at - interval '8 days'"))
        await prune(database, settings_for(data_dir, database_url, **days))
        assert (await client.get(f"/runs/{run_id}")).json()["pruned"].keys() == pruned
        assert bool(await _rows(database, "rollout_record")) is ("rollouts" not in pruned)
        (await client.delete(f"/runs/{run_id}")).raise_for_status()
        assert not await _rows(database, "rollout_record")
