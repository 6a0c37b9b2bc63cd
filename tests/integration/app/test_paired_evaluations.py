"""A run's own evaluations, paired by scenario with a model in an evaluation."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.errors import NotFound
from learnloop_service.app.operations.paired import paired
from tests.browser.real_service import real_service
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.served import run_with

RUN = {
    "iterations": 0,
    "warm_start": {"demonstrations": {"oracle": 64}, "epochs": 1, "held_out": 0},
    "evaluation": {"every": 1, "scenarios": 12, "test_scenarios": 0, "samples": 1, "seed": 11},
    "seed": 3,
}


async def _rollouts(client: httpx.AsyncClient, of: str, **query: Any) -> list[Any]:
    """Scenario, sampled tokens and success of the rollouts, in the order of the scenarios' numbers."""
    listed = (await client.get(f"{of}/trajectories", params={"limit": 200, **query})).raise_for_status().json()["items"]
    rollouts = []
    for row in listed:
        turns = (await client.get(f"/trajectories/{row['id']}/tokens")).raise_for_status().json()["turns"]
        rollouts.append((row["scenario_id"], row["scenario"], [turn["texts"] for turn in turns], row["success"]))
    return sorted(rollouts, key=lambda rollout: _number(rollout[0]))


def _number(scenario_id: str) -> int:
    """The number of an invented inbox, as in validation.11.3@inbox.example."""
    return int(scenario_id.split("@")[0].split(".")[-1])


@pytest.mark.long
async def test_a_run_has_the_greedy_rollouts_of_an_evaluation_of_its_checkpoint(
    data_dir: Path, database_url: str, database: Database, tmp_path: Path
) -> None:
    with EngineProcess(tmp_path) as engine:
        async with (
            real_service(data_dir, database_url, engine) as url,
            httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client,
        ):
            run_id = (await client.post("/learn-loop", json=RUN)).raise_for_status().json()["run_id"]
            run = await run_with(client, run_id, "completed", "failed")
            assert run["status"] == "completed", run["error"]
            base, trained = {"model": "learnloop/tiny", "label": "base"}, {"model": run_id, "label": "trained"}
            request = {"run_id": run_id, "models": [base, trained], "split": "validation", "scenarios": 12}
            posted = await client.post("/evaluations", json=request)
            evaluation = await ended(client, posted.raise_for_status().json()["evaluation_id"])
            assert evaluation["status"] == "completed", evaluation["error"]
            id = evaluation["evaluation_id"]
            in_evaluation = await _rollouts(client, f"/evaluations/{id}")
            in_run = [
                await _rollouts(client, f"/runs/{run_id}", kind="evaluation", iteration=iteration, mode="greedy")
                for iteration in (0, 1)
            ]
            assert len(in_run[0]) == len(in_run[1]) == 12
            assert sorted([*in_run[0], *in_run[1]], key=str) == sorted(in_evaluation, key=str)
            assert in_run[0] != in_run[1], "training changed nothing"
            assert await paired(database, run_id, 1, id, 1) == [0.0] * 12
            assert await paired(database, run_id, 0, id, 0) == [0.0] * 12
            gains = [float(after[3] - before[3]) for before, after in zip(*in_run, strict=True)]
            assert any(gains)
            assert await paired(database, run_id, 1, id, 0) == gains
            async with database.begin() as tx:
                of_base = (Trajectory.evaluation_id == id, Trajectory.slot == "0/3/0")
                of_run = (Trajectory.run_id == run_id, Trajectory.scenario_id == in_run[1][5][0])
                for rollouts in (of_base, of_run):
                    await tx.execute(update(Trajectory).where(*rollouts).values(reward=None, success=None))
            judged = [gain for number, gain in enumerate(gains) if number not in (3, 5)]
            assert await paired(database, run_id, 1, id, 0) == judged
            with pytest.raises(NotFound):
                await paired(database, run_id, 1, "nothing", 0)
