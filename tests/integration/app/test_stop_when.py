"""Runs with `stop_when`, from the request to the terminal, and what they are forecast to come to."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.runs_without_signal import RUN, service, started
from tests.integration.app.served import ended, served, settings_for
from tests.integration.training.scripted_runs import skilled

GOOD = RUN | {"iterations": 9, "evaluation": {"every": 2, "scenarios": 8, "test_scenarios": 2, "samples": 2}}


async def test_a_run_ends_at_its_target_and_says_what_more_would_have_cost(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(skilled(lambda step, _, luck: step > 1 or luck < 0.5)) as model:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(model.url)) as client:  # type: ignore[arg-type]
            request = GOOD | {"stop_when": {"target": 0.6}}
            run = await ended(client, (await started(client, **request))["run_id"])
            iterations_done = run["progress"]["iterations_done"]
            assert (run["status"], run["error"]) == ("completed", None)
            assert 3 < iterations_done < 9
            assert run["ended_early"] == f"It ended after {iterations_done} of 9 iterations, by its stop_when."
            why = f"It ended after {iterations_done} of 9 iterations, because its held-out success was shown to have"
            assert f"{why} reached the target." in run["verdict"]["text"]
            assert "tokens" in run["verdict"]["details"]
            assert {evaluation["split"] for evaluation in run["evaluations"]} == {"validation", "test"}
            printed = await asyncio.to_thread(
                CliRunner().invoke, app, ["runs", "show", run["run_id"], "--url", str(client.base_url)]
            )
            assert "The others were expected to come to" in " ".join(printed.output.split())
            fork = await client.post(f"/runs/{run['run_id']}/fork", json={"stop_when": None, "iterations": 6})
            forked = await ended(client, fork.raise_for_status().json()["run_id"])
            assert (forked["progress"]["iterations_done"], forked["forecast"]) == (6, None)


async def test_a_run_that_goes_on_has_a_forecast(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(skilled(lambda step, _, luck: luck < 0.3)) as model:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(model.url)) as client:  # type: ignore[arg-type]
            held_out = {"every": 2, "scenarios": 2, "test_scenarios": 1, "samples": 1}
            request = RUN | {"budget": {"max_tokens": 15_000}, "iterations": 200, "evaluation": held_out}
            run_id = (await started(client, **request))["run_id"]

            async def read() -> Any:
                return (await client.get(f"/runs/{run_id}")).json()

            run = await answered(read, lambda run: run["status"] not in ("queued", "running"))
            assert run["status"] == "paused"
            assert run["progress"]["iterations_done"] > 3
            for figures in (run["forecast"]["end"], run["forecast"]["twice"]):
                assert {"minutes", "tokens"} <= figures.keys()
                assert all(low <= expected <= high for expected, low, high in figures.values())
            assert run["forecast"]["end"]["tokens"][0] < run["forecast"]["twice"]["tokens"][0]


NONSENSE: Sequence[Any] = (
    *({}, {"target": 0}, {"target": 1.5}, {"target": "high"}, {"no_gain": {}}, {"no_gain": {"usd_per_point": -1}}),
    *({"no_gain": {"euros_per_point": 1}}, {"plateau": False}, {"taget": 0.9}, 0.9),
)


async def test_nonsense_is_refused(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url) as client:
        bodies = [{"stop_when": rules} for rules in NONSENSE]
        for body in (*bodies, {"evaluation": {"scenarios": 0}, "stop_when": {"target": 0.9}}):
            response = await client.post("/learn-loop", json=RUN | body)
            assert response.status_code == 422, body
            assert response.headers["content-type"] == "application/problem+json"
