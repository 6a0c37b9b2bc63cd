"""A run's held-out scenarios over its checkpoints, and what its agent does differently, as the API tells them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select, text, update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Evaluation, Trajectory
from learnloop_service.app.runs.film import MAX_CHECKPOINTS, MAX_SCENARIOS, chosen
from learnloop_service.app.schemas.film import FilmCheckpoint
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.film_scenarios import HELD_OUT
from tests.integration.app.served import run_with, served, settings_for


async def _ended(client: httpx.AsyncClient, **request: Any) -> str:
    body = {"iterations": 2, "model": {"name": "a"}} | request
    run_id: str = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
    await run_with(client, run_id, "completed")
    return run_id


async def _film(client: httpx.AsyncClient, run_id: str, **query: Any) -> Any:
    return (await client.get(f"/runs/{run_id}/film", params=query)).raise_for_status().json()


def _calling(keywords: list[str]) -> list[Any]:
    arguments = json.dumps({"keywords": keywords})
    call = {"id": "c1", "type": "function", "function": {"name": "search_inbox", "arguments": arguments}}
    return [
        {"role": "user", "content": "a question", "tool_calls": [{"function": {"name": "not the agent's"}}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "nothing", "tool_call_id": "c1"},
        {"role": "assistant", "content": "the answer", "tool_calls": None},
    ]


async def test_scenarios_are_sorted_by_when_they_were_learned(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop(held_out=HELD_OUT)) as client:
        run_id = await _ended(client)
        film = await _film(client, run_id)
        places = [
            (checkpoint["iteration"], checkpoint["step"], checkpoint["is_kept"]) for checkpoint in film["checkpoints"]
        ]
        assert places == [(0, 0, True), (1, 1, True), (2, 2, True)]
        assert [checkpoint["success"] for checkpoint in film["checkpoints"]] == [
            sum(successes) / 7 for successes in HELD_OUT.values()
        ]
        rows = [
            (scenario["scenario_id"][-1], scenario["trend"], scenario["learned_at"]) for scenario in film["scenarios"]
        ]
        assert rows == [
            ("0", "known", 0),
            ("2", "learned", 1),
            ("5", "learned", 2),
            ("3", "lost", None),
            ("4", "got_worse", None),
            ("1", "never", None),
            ("6", "never", None),
        ]
        first = film["scenarios"][0]
        assert (first["task"], first["expected"]) == ({"question": "what 0?"}, "that")
        assert (first["right"], first["rollouts"]) == ([1, 1, 1], [1, 1, 1])
        assert (film["checkpoints_total"], film["scenarios_total"], film["behaviours"]) == (3, 7, [])
        assert (await _film(client, run_id, split="test"))["checkpoints"] == []
        some: dict[str, Any] = {"kind": "evaluation", "scenario_id": "validation:2", "iteration": [0, 2]}
        frames = (await client.get(f"/runs/{run_id}/trajectories", params=some)).raise_for_status().json()["items"]
        assert [(frame["iteration"], frame["success"]) for frame in frames] == [(0, False), (2, True)]
        assert (await client.get("/runs/none/film")).status_code == 404
        assert (await client.get(f"/runs/{run_id}/film", params={"split": "all"})).status_code == 422


async def test_what_the_agent_does_differently_is_read_from_its_tool_calls(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop(held_out=HELD_OUT)) as client:
        run_id = await _ended(client)
        of_evaluations = (Trajectory.run_id == run_id, Trajectory.kind == "evaluation")
        async with database.begin() as tx:
            await tx.execute(update(Trajectory).where(*of_evaluations).values(messages=_calling(["one"])))
            late = update(Trajectory).where(*of_evaluations, Trajectory.iteration == 2)
            await tx.execute(late.values(messages=_calling(["one", "two"])))
            await tx.execute(update(Checkpoint).where(Checkpoint.step == 1).values(deleted_at=datetime.now(UTC)))
        film = await _film(client, run_id)
        assert [checkpoint["is_kept"] for checkpoint in film["checkpoints"]] == [True, False, True]
        [one] = film["behaviours"]
        assert one["what"] == "the first call is `search_inbox` with at least 2 values in `keywords`"
        assert (one["before"], one["after"], one["points"]["mean"]) == (0, 1, 100)
        assert film["behaviours_compared"] == 4


async def test_a_long_run_has_a_film_of_bounded_size(data_dir: Path, database_url: str, database: Database) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop(held_out=HELD_OUT)) as client:
        run_id = await _ended(client)
        await _lengthen(database, run_id, iterations=1_000, scenarios=250)
        response = await client.get(f"/runs/{run_id}/film")
        film = response.raise_for_status().json()
        assert (film["checkpoints_total"], len(film["checkpoints"])) == (1_003, MAX_CHECKPOINTS)
        assert [film["checkpoints"][index]["iteration"] for index in (0, -1)] == [0, 1_002]
        assert len(film["scenarios"][0]["task"]["question"]) <= 201
        assert (film["scenarios_total"], len(film["scenarios"])) == (257, MAX_SCENARIOS)
        assert len(response.content) < 150_000


async def _lengthen(database: Database, run_id: str, iterations: int, scenarios: int) -> None:
    """Give the run further evaluations, of which the last one has rollouts on so many more scenarios."""
    last = select(Evaluation).where(Evaluation.run_id == run_id, Evaluation.iteration == 2)
    async with database.begin() as tx:
        row = vars((await tx.execute(last)).scalar_one())
        columns = {column.name: row[column.name] for column in Evaluation.__table__.columns}
        more = [columns | {"iteration": 3 + n, "step": 3 + n} for n in range(iterations)]
        await tx.execute(insert(Evaluation), more)
        expressions = {
            "id": "concat('more-', n)",
            "scenario_id": "concat('more-', n)",
            "iteration": str(iterations + 2),
        }
        expressions |= {"step": str(iterations + 2), "scenario": "cast(:scenario AS jsonb)"}
        names = [column.name for column in Trajectory.__table__.columns if column.name != "seq"]
        values = ", ".join(expressions.get(name, name) for name in names)
        copies = f"""
            INSERT INTO trajectory ({", ".join(names)}) SELECT {values} FROM trajectory, generate_series(1, :many) AS n
            WHERE run_id = :run_id AND iteration = 2 AND trajectory.scenario_id = 'validation:0'
        """
        scenario = json.dumps({"task": {"question": "w" * 5_000}, "reference": {"answer": "t" * 5_000}})
        await tx.execute(text(copies), {"run_id": run_id, "many": scenarios, "scenario": scenario})


def _checkpoint(iteration: int) -> FilmCheckpoint:
    return FilmCheckpoint(iteration=iteration, step=iteration, success=0.0, is_kept=True)


@pytest.mark.parametrize("count", [0, 1, 2, MAX_CHECKPOINTS, MAX_CHECKPOINTS + 1, 1_000])
def test_the_first_and_the_last_checkpoint_are_always_shown(count: int) -> None:
    iterations = [checkpoint.iteration for checkpoint in chosen([_checkpoint(n) for n in range(count)])]
    assert len(iterations) == min(count, MAX_CHECKPOINTS) == len(set(iterations))
    assert iterations == sorted(iterations)
    assert not iterations or (iterations[0], iterations[-1]) == (0, count - 1)
