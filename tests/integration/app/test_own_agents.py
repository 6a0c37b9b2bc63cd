"""Runs over an agent that lives elsewhere: it does the tasks, Learnloop gives it a model and takes back an outcome."""

import json
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from learnloop_service.app.cli.run_report import failures_text
from learnloop_service.app.cli.watching import RunDisplay
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.own_agent_runs import AGENTS, SMALL, TASKS, by_seed, get, request
from tests.integration.app.served import run_with, served, settings_for


async def test_a_python_function_is_trained_evaluated_and_asked(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes")
    async with scripted_chat(by_seed) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings, learn_loop, backend) as client:  # type: ignore[arg-type]
            posted = await client.post("/learn-loop", json=request({"python": f"{AGENTS}:scoring"}))
            run_id = posted.raise_for_status().json()["run_id"]
            run = await run_with(client, run_id, "completed", "failed")
            assert run["status"] == "completed"
            [policy] = backend.policies.values()
            trained = [
                trajectory
                for training_request in policy.requests
                for group in training_request.groups
                for trajectory in group.trajectories
            ]
            assert {trajectory.reward for trajectory in trained} == {0.75, -0.25}
            for row in (await get(client, f"/runs/{run_id}/trajectories?limit=200"))["items"]:
                details = await get(client, f"/trajectories/{row['id']}")
                assert [message["role"] for message in details["messages"]] == ["user", "assistant"]
                assert details["reward"] == sum(details["outcome"]["parts"].values())
            assert (await get(client, f"/runs/{run_id}/verify"))["ok"]

            answer = await client.post("/ask", json={"run_id": run_id, "input": {"question": "Now?"}})
            assert answer.raise_for_status().json()["answer"] in ("0.75", "-0.25")

            config = {"name": "agent", "config": {"scenarios": TASKS, "runner": {"python": f"{AGENTS}:answering"}}}
            body = {"run_id": run_id, "scenarios": 1, "environment": config, "judge": {"name": "reference"}}
            posted = await client.post("/evaluations", json=body)
            path = f"/evaluations/{posted.raise_for_status().json()['evaluation_id']}"
            evaluation = await answered(
                lambda: get(client, path), lambda document: document["status"] in ("completed", "failed")
            )
            assert evaluation["status"] == "completed"
            for row in (await get(client, f"{path}/trajectories"))["items"]:
                assert (await get(client, f"/trajectories/{row['id']}"))["outcome"]["answer"] in ("yes", "no")


async def test_what_gives_no_outcome_fails_alone_and_is_never_zero(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, agent_modules=AGENTS)
    contents = ["refuse", "lie", "yes", "no"]

    async def in_turn(chat_request: Mapping[str, Any]) -> Reply:
        number = len(chat.requests) - 5  # after the four of the baseline
        return Reply(content=contents[number % 4] if 0 <= number < 16 else "yes")

    async with scripted_chat(in_turn) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings, learn_loop, backend) as client:  # type: ignore[arg-type]
            body = request({"python": f"{AGENTS}:scoring"}, concurrency=1, rollouts_per_group=8)
            run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
            assert (await run_with(client, run_id, "completed", "failed"))["status"] == "completed"
            rows = (await get(client, f"/runs/{run_id}/trajectories?limit=200&kind=train"))["items"]
            errors = [row["error"] for row in rows]
            assert sum(error is None for error in errors) == 8
            assert sum("no network" in error for error in errors if error) == 4
            assert sum("reward is a finite number" in error for error in errors if error) == 4
            assert {row["reward"] for row in rows if row["error"]} == {None}
            [policy] = backend.policies.values()
            [training_request] = policy.requests
            assert [len(group.trajectories) for group in training_request.groups] == [4, 4]


async def test_an_agent_out_of_turns_is_told_so_and_still_reports(data_dir: Path, database_url: str) -> None:
    settings = settings_for(data_dir, database_url, agent_modules=AGENTS)
    async with (
        scripted_chat(by_seed) as chat,
        served(settings, learn_loop, ScriptedBackend(chat.url)) as client,  # type: ignore[arg-type]
    ):
        body = request({"python": f"{AGENTS}:endless"}, max_turns=3)
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        assert (await run_with(client, run_id, "completed", "failed"))["status"] == "completed"
        rows = (await get(client, f"/runs/{run_id}/trajectories?limit=200&kind=train"))["items"]
        assert {(row["turns"], row["reward"]) for row in rows} == {(3, 3.0)}


@pytest.mark.parametrize(("scores", "worst"), [((1, 0.5), 0.0), ((-1, -3), -3.0)])
async def test_a_reply_that_is_cut_off_makes_a_bad_rollout_and_no_failed_one(
    data_dir: Path, database_url: str, scores: tuple[float, float], worst: float
) -> None:
    replies = [
        Reply(content='{"rew', cut_off=True),
        *(Reply(content=json.dumps({"reward": score})) for score in scores),
    ]

    async def in_turn(chat_request: Mapping[str, Any]) -> Reply:
        return replies[len(chat.requests) % 3]

    settings = settings_for(data_dir, database_url, agent_modules=AGENTS)
    async with scripted_chat(in_turn) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings, learn_loop, backend) as client:  # type: ignore[arg-type]
            body = request({"python": f"{AGENTS}:parsing"}, concurrency=1, rollouts_per_group=6)
            run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
            run = await run_with(client, run_id, "completed", "failed")
            assert (run["status"], run["progress"]["failures"]) == ("completed", None)
            rows = (await get(client, f"/runs/{run_id}/trajectories?limit=200&kind=train"))["items"]
            assert sorted(row["reward"] for row in rows) == sorted([worst, *scores] * 4)
            assert [row for row in rows if row["error"]] == []
            cut = [row for row in rows if row["outcome"]["finish"] == "malformed"]
            assert {(row["reward"], row["success"]) for row in cut} == {(worst, False)}
            assert cut[0]["outcome"]["detail"].startswith("reply 1 was cut off at its limit, after 10 tokens; then the")
            assert "JSONDecodeError" in cut[0]["outcome"]["detail"]
            assert (await get(client, f"/runs/{run_id}/verify"))["ok"]


async def test_the_first_failure_of_an_agent_is_shown_with_its_run(data_dir: Path, database_url: str) -> None:
    async def in_turn(chat_request: Mapping[str, Any]) -> Reply:
        fails = len(chat.requests) in (10, 16)  # after the eight of the baseline
        return Reply(content="{}" if fails else '{"reward": 1}')

    settings = settings_for(data_dir, database_url, agent_modules=AGENTS)
    async with (
        scripted_chat(in_turn) as chat,
        served(settings, learn_loop, ScriptedBackend(chat.url)) as client,  # type: ignore[arg-type]
    ):
        body = request({"python": f"{AGENTS}:parsing"}, concurrency=1, evaluation={**SMALL["evaluation"], "samples": 3})
        run_id = (await client.post("/learn-loop", json=body)).raise_for_status().json()["run_id"]
        run = await run_with(client, run_id, "completed", "failed")
        failures = run["progress"]["failures"]
        first = f"AgentFailed: the agent {AGENTS}:parsing raised KeyError: 'reward'"
        assert (failures["iteration"], failures["first"]) == (1, first)
        assert failures_text(failures) == f"2 of 16 rollouts failed in iteration 1: {first}"
        output = StringIO()
        RunDisplay(Console(file=output, width=200)).show(run)
        assert failures_text(failures) in output.getvalue()


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        ({"judge": None}, ["body", "judge", "config"], "LEARNLOOP_JUDGE_MODEL"),
        ({"agent": {"name": "langgraph"}}, ["body", "agent"], "leave out `agent`"),
        ({"runner": {"python": "os:system"}}, ["body", "environment", "config", "runner"], "LEARNLOOP_AGENT_MODULES"),
        ({"runner": {"python": f"{AGENTS}:nobody"}}, ["body", "environment", "config", "runner"], "has no nobody"),
        ({"runner": {"python": f"{AGENTS}:blocking"}}, ["body", "environment", "config", "runner"], "not an async"),
        ({"runner": {"carrier": "pigeon"}}, ["body", "environment", "config", "runner"], "runner must be one of"),
    ],
)
async def test_a_run_over_an_agent_that_cannot_be_is_refused(
    data_dir: Path, database_url: str, change: dict[str, Any], place: list[str], said: str
) -> None:
    settings = settings_for(data_dir, database_url, agent_modules=AGENTS)
    body = request(change.pop("runner", {"python": f"{AGENTS}:scoring"})) | change
    async with served(settings, ScriptedLoop()) as client:
        refused = await client.post("/learn-loop", json=body)
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["loc"] == place
    assert said in error["msg"]
