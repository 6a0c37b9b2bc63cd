"""Evaluations of training scenarios: those that a run with the same seed trains on first."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.environment.json_type import Json
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.served import run_with, served, settings_for

RUN = {
    "iterations": 1,
    "groups_per_iteration": 3,
    "rollouts_per_group": 2,
    "seed": 5,
    "evaluation": {"seed": 7, "scenarios": 1, "test_scenarios": 1},
}


async def _gives_up(request: Mapping[str, Json]) -> Reply:
    return call("return_final_answer", answer="I don't know", sources=[])


async def _tasks(client: httpx.AsyncClient, of: str, **query: Any) -> dict[str, Json]:
    """The tasks of the rollouts, by scenario."""
    listed = await client.get(f"{of}/trajectories", params={"limit": 200, **query})
    return {row["scenario_id"]: row["scenario"]["task"] for row in listed.raise_for_status().json()["items"]}


async def test_its_scenarios_are_those_that_a_run_with_its_seed_trains_on_first(
    data_dir: Path, database_url: str
) -> None:
    async with (
        scripted_chat(_gives_up) as chat,
        served(settings_for(data_dir, database_url), learn_loop, ScriptedBackend(chat.url)) as client,  # type: ignore[arg-type]
    ):
        run_id = (await client.post("/learn-loop", json=RUN)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed", "paused")
        trained = await _tasks(client, f"/runs/{run_id}", kind="train")
        assert len(trained) == 3
        whole: dict[str, dict[str, Json]] = {}
        for request in ({"run_id": run_id}, {"models": [{"model": "learnloop/tiny"}], "seed": 5}):
            posted = await client.post("/evaluations", json={**request, "split": "train", "scenarios": 4})
            evaluation = await ended(client, posted.raise_for_status().json()["evaluation_id"])
            assert evaluation["status"] == "completed", evaluation["error"]
            assert evaluation["request"]["seed"] == 5
            assert evaluation["report"]["split"] == "train"
            id = evaluation["evaluation_id"]
            whole[id] = await _tasks(client, f"/evaluations/{id}")
            assert len(whole[id]) == 4
            assert whole[id].items() > trained.items()
        first, second = whole
        assert whole[first] == whole[second]
        assert "4 training scenarios, " in (await client.get(f"/evaluations/{first}/report")).text
        plot = await client.get(f"/evaluations/{first}/report", params={"form": "svg"})
        assert "Success on 4 training scenarios, " in plot.text
        failing = (await client.get("/failures", params={"evaluation": first})).raise_for_status().json()
        assert failing["now"]["tasks"] == 4

        held_out = await client.post("/evaluations", json={"run_id": run_id, "split": "validation", "scenarios": 1})
        evaluation = await ended(client, held_out.json()["evaluation_id"])
        assert (evaluation["request"]["seed"], evaluation["report"]["split"]) == (7, "validation")

        command = ("eval", "--run", run_id, "--split", "train", "--scenarios", "2", "--url", str(client.base_url))
        printed = await asyncio.to_thread(CliRunner().invoke, app, list(command))
        assert printed.stdout.splitlines()[1].startswith("2 training scenarios, 95% intervals"), printed.output
