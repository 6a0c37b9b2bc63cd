"""A learn-loop through the API, from the request to what is stored of it."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.training.types import RunConfig
from tests.conditions import until
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import run_once, run_with, served, settings_for


async def _post(client: httpx.AsyncClient, **body: Any) -> Any:
    response = await client.post("/learn-loop", json=body)
    assert response.status_code == 202, response.text
    return response.json()


async def test_a_run_goes_from_request_to_completed(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        accepted = await _post(client, iterations=3, model={"name": "agent"})
        assert accepted["status"] == "queued"
        assert accepted["links"]["self"] == f"/runs/{accepted['run_id']}"
        assert accepted["results_path"] == f"/runs/{accepted['run_id']}/results"
        run = await run_with(client, accepted["run_id"], "completed")

        assert run["progress"] | {"iterations_done": 3, "iterations_total": 3} == run["progress"]
        assert run["model"] == {"project": "learnloop", "name": "agent", "base_model": "learnloop/tiny"}
        assert [point["iteration"] for point in run["iterations"]] == [0, 1, 2, 3]
        assert run["iterations"][0]["rewards"]["mean"] is None
        assert run["iterations"][3]["rewards"]["mean"] == pytest.approx(0.3)
        assert run["best_checkpoint"] == {
            "step": 3,
            "success": pytest.approx(0.5),
            "interval": [pytest.approx(0.0546, abs=1e-3), pytest.approx(0.9454, abs=1e-3)],  # of one scenario
        }
        assert run["tokens"] == {"prompt": 4000, "completion": 400}
        assert run["rollouts"] == 3 * 2 + 2 * 3
        assert {(e["iteration"], e["split"], e["mode"]) for e in run["evaluations"]} == {
            (k, split, mode)
            for k in (0, 3)
            for split, mode in (("validation", "sampled"), ("test", "sampled"), ("test", "greedy"))
        }
        held_out = run["summary"]["held_out"]["sampled"]
        assert held_out["split"] == "test"
        assert held_out["before"]["step"] == 0
        assert held_out["after"]["step"] == 3
        assert run["started_at"] < run["finished_at"]

        iterations = (await client.get(run["links"]["iterations"])).json()["items"]
        assert iterations[2]["train_metrics"] == {"loss": None}  # NaN
        assert iterations[2]["skipped_groups"] == {"no_signal": 1}
        checkpoints = (await client.get(run["links"]["checkpoints"])).json()["items"]
        assert all(c["model"] for c in checkpoints)
        assert [(c["step"], c["iteration"], c["is_best"]) for c in checkpoints] == [
            (0, 0, False),
            (1, 1, False),
            (2, 2, False),
            (3, 3, True),
        ]


async def test_trajectories_are_listed_lightly_and_shown_whole(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await _post(client, iterations=2))["run_id"]
        await run_with(client, run_id, "completed")
        path = f"/runs/{run_id}/trajectories"
        first = (await client.get(path, params={"limit": 4})).json()
        rest = (await client.get(path, params={"limit": 200, "cursor": first["next_cursor"]})).json()
        everything = first["items"] + rest["items"]
        assert rest["next_cursor"] is None
        assert len({item["id"] for item in everything}) == len(everything) == 10
        assert "messages" not in everything[0]
        training = (await client.get(path, params={"iteration": 1, "split": "train"})).json()["items"]
        assert [item["kind"] for item in training] == ["train", "train"]
        greedy = (await client.get(path, params={"mode": "greedy", "iteration": 0})).json()["items"]
        assert [item["split"] for item in greedy] == ["test"]
        assert (await client.get(path, params={"scenario_id": "nothing"})).json()["items"] == []

        whole = (await client.get(f"/trajectories/{training[1]['id']}")).json()
        assert whole["messages"][1] == {"role": "assistant", "content": "the answer"}
        assert whole["scenario"] == {
            "task": {"question": "what of train?"},
            "reference": {"answer": "that"},
        }
        assert whole["score"] == 1.0
        assert whole["score_explanation"] == "as scripted"
        assert (whole["turns"], whole["prompt_tokens"], whole["completion_tokens"]) == (2, 100, 20)


async def test_what_a_model_may_sample_can_be_stored(data_dir: Path, database_url: str) -> None:
    odd = "nul \x00, half a pair \ud800, and text"
    async with served(settings_for(data_dir, database_url), ScriptedLoop(reply=odd)) as client:
        run_id = (await _post(client, iterations=1))["run_id"]
        await run_with(client, run_id, "completed")
        listed = (await client.get(f"/runs/{run_id}/trajectories")).json()["items"]
        whole = (await client.get(f"/trajectories/{listed[0]['id']}")).json()
        assert whole["messages"][1]["content"] == "nul \ufffd, half a pair \ufffd, and text"


async def test_progress_is_shown_while_a_run_works(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await _post(client))["run_id"]
        run = await run_once(client, run_id, lambda run: run["progress"]["iteration"] == 1)
        assert run["status"] == "running"
        assert run["progress"] == {
            "iterations_done": 0,
            "iterations_total": RunConfig().iterations,
            "iteration": 1,
            "phase": "rollout",
            "done": 3,
            "total": 64,
            "failures": None,
        }


async def test_cancel_stops_the_work_before_it_says_so(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={2: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await _post(client))["run_id"]
        await until(loop.has_entered(2).is_set)
        assert (await client.post(f"/runs/{run_id}/cancel")).status_code == 202
        run = await run_with(client, run_id, "cancelled")
        assert loop.closed.is_set()
        assert run["progress"]["iterations_done"] == 1
        assert (await client.post(f"/runs/{run_id}/cancel")).json()["status"] == "cancelled"


async def test_a_completed_run_cannot_be_cancelled(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await _post(client, iterations=1))["run_id"]
        await run_with(client, run_id, "completed")
        response = await client.post(f"/runs/{run_id}/cancel")
        assert response.status_code == 409
        assert response.json()["detail"] == "Cannot cancel a completed run. Allowed: fork, delete."


async def test_a_failing_loop_fails_its_run_and_the_next_one_goes_on(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(fail_at=1)
    async with served(settings_for(data_dir, database_url), loop) as client:
        run = await run_with(client, (await _post(client))["run_id"], "failed")
        assert run["error"] == "RuntimeError: scripted failure"
        assert run["iterations"][0]["iteration"] == 0
        loop.fail_at = None
        await run_with(client, (await _post(client, iterations=1))["run_id"], "completed")


async def test_a_model_has_one_live_run(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={1: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        first = (await _post(client, iterations=1, model={"name": "agent"}))["run_id"]
        response = await client.post("/learn-loop", json={"model": {"name": "agent"}})
        assert response.status_code == 409
        assert response.json()["run_id"] == first
        loop.gates[1].set()
        await run_with(client, first, "completed")
        again = (await _post(client, iterations=1, model={"name": "agent"}))["run_id"]
        assert (await run_with(client, again, "completed"))["best_checkpoint"]["step"] == 2


async def test_runs_are_listed_newest_first_in_pages(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(gates={0: threading.Event()})
    async with served(settings_for(data_dir, database_url), loop) as client:
        ids = [(await _post(client))["run_id"] for _ in range(5)]
        page = (await client.get("/runs", params={"limit": 3})).json()
        rest = (await client.get("/runs", params={"limit": 3, "cursor": page["next_cursor"]})).json()
        assert [run["run_id"] for run in page["items"] + rest["items"]] == ids[::-1]
        assert rest["next_cursor"] is None
        await until(loop.has_entered(0).is_set)
        running = (await client.get("/runs", params={"status": "running"})).json()["items"]
        assert [run["run_id"] for run in running] == ids[:1]
