"""CoDreamer's own frontend, unchanged: it posts a graph, hears of every iteration, and fetches the results.

The learn loop, the environment and the judge are real. The model is scripted and the iterations are small, because the
frontend's body can choose neither, and eight times eight rollouts and their evaluations would take minutes.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app import service
from learnloop_service.app.webhooks.dispatcher import Dispatcher
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import EvaluationConfig, IterationResult, RunConfig
from tests.conditions import until
from tests.fakes.frontend import Frontend, frontend
from tests.fakes.sales_agent import GRAPH, WAY, sales_agent, silent_agent
from tests.fakes.scripted_chat import Script, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.sales_runs import SALES
from tests.integration.app.served import run_with, served, settings_for

BODY: dict[str, Any] = {"graph": GRAPH, "iterations": 2, "depth": 4}
"""All that the frontend sends."""
_PATIENCE_S = 120


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Dispatcher", partial(Dispatcher, retry_delays_s=(0.0,) * 5))


def _small(config: RunConfig, *others: Any, **more: Any) -> AsyncGenerator[IterationResult, None]:
    """The learn loop with few rollouts."""
    evaluation = EvaluationConfig(scenarios=2, test_scenarios=2, samples=1)
    small = replace(config, groups_per_iteration=2, rollouts_per_group=4, evaluation=evaluation)
    return learn_loop(small, *others, **more)


async def _run(data_dir: Path, database_url: str, receiver: Frontend, script: Script, body: Any) -> Any:
    """Posts the body, waits until everything is delivered, and downloads; the answer, the run and the files."""
    settings = settings_for(data_dir, database_url, frontend_url=receiver.url)
    async with (
        scripted_chat(script) as chat,
        served(settings, _small, ScriptedBackend(chat.url)) as client,  # type: ignore[arg-type]
    ):
        address = str(client.base_url)
        answer = await asyncio.to_thread(receiver.post_learn_loop, address, body)
        folder = data_dir / "runs" / answer["run_id"] / "results"
        await until((folder / "iter1_rewards.json").exists, timeout_s=_PATIENCE_S)
        receiver.hurry.set()
        await until((folder / "final_email.json").exists, timeout_s=_PATIENCE_S)
        run = await run_with(client, answer["run_id"], "completed")
        deliveries = body["iterations"] + 1
        await until(lambda: len(receiver.accepted) + len(receiver.refused) >= deliveries, timeout_s=_PATIENCE_S)
        files = await asyncio.to_thread(receiver.download, address, answer["results_path"])
        return answer, run, files


async def test_a_frontend_that_fails_at_times_hears_of_every_iteration(data_dir: Path, database_url: str) -> None:
    # It hangs on the first delivery until the run has gone on; then it fails and hangs up, twice each.
    with frontend(at_0="slow", at_1="500", at_2="drop", at_4="drop", at_5="500") as receiver:
        answer, run, files = await _run(data_dir, database_url, receiver, sales_agent, BODY)
    run_id = answer["run_id"]
    assert answer["results_path"] == f"/runs/{run_id}/results"
    assert run["status"] == "completed"
    assert receiver.refused == []
    assert [message["iteration"] for message in receiver.accepted] == [0, 1, 2]
    # Every attempt of a delivery sends the same bytes.
    assert len(receiver.attempts) >= 3 + 4
    assert len({id for id, _ in receiver.attempts}) == len(set(receiver.attempts)) == 3
    for number, message in enumerate(receiver.accepted):
        assert message["run_id"] == run_id
        email = json.loads(files[f"iter{number}_email.json"][1])
        assert message["final_email"] == {name: email[name] for name in ("subject", "body", "citations")}
        assert message["final_email"]["citations"] == list(WAY)
        assert (message["trajectory_id"], message["email_written"]) == (email["trajectory_id"], True)
        assert message["node_scores"] == json.loads(files[f"iter{number}_node_scores.json"][1])
        rewards = json.loads(files[f"iter{number}_rewards.json"][1])
        assert message["rewards"] == {name: rewards[name] for name in ("mean", "median", "min", "max", "count")}
    assert set(receiver.accepted[0]["node_scores"].values()) == {1.0}
    assert receiver.accepted[0]["node_scores"] != receiver.accepted[2]["node_scores"]
    assert receiver.accepted[2].keys() == {
        *("type", "timestamp", "run_id", "iteration", "status", "rewards", "success", "step"),
        *("final_email", "node_scores", "trajectory_id", "email_written"),
        *("seq", "version"),
    }
    folder = data_dir / "runs" / run_id / "results"
    assert {name: body for name, (_, body) in files.items()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    # An agent may write a script: a browser that is led here must save it, never run it.
    assert b"<script>" in files["iter1_trajectories.jsonl"][1]
    for headers, _ in files.values():
        assert headers["content-disposition"].startswith("attachment;")
        assert headers["x-content-type-options"] == "nosniff"
        assert "html" not in headers["content-type"]


async def test_an_agent_that_writes_nothing_is_told_in_the_same_form(data_dir: Path, database_url: str) -> None:
    with frontend() as receiver:
        await _run(data_dir, database_url, receiver, silent_agent, SALES | {"iterations": 1})
    assert receiver.refused == []
    assert [message["email_written"] for message in receiver.accepted] == [False, False]
    assert receiver.accepted[1]["final_email"] == {"subject": "", "body": "", "citations": []}
    assert receiver.accepted[1]["node_scores"].keys() == {node["id"] for node in GRAPH}
