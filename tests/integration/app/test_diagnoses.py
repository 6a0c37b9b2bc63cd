"""Runs that say why they do not learn: in the API, the log, the list, the metrics and the command, and by pausing."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.app.schemas.run_request import ForkRequest
from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import learnloop
from tests.integration.app.diagnosed_runs import MALFORMED, RUN
from tests.integration.app.runs_without_signal import WRONG, service
from tests.integration.app.served import run_with
from tests.opened_database import execute


async def _ended(client: httpx.AsyncClient, **more: Any) -> Any:
    accepted = (await client.post("/learn-loop", json=RUN | more)).raise_for_status().json()
    return await run_with(client, accepted["run_id"], "completed", "failed", "paused")


async def _diagnosis(client: httpx.AsyncClient, run: Any) -> Any:
    return (await client.get(f"/runs/{run['run_id']}/diagnosis")).raise_for_status().json()


async def _events(client: httpx.AsyncClient, run: Any) -> list[Any]:
    listed = await client.get(f"/runs/{run['run_id']}/events", params={"limit": 200})
    return [event for event in listed.raise_for_status().json()["items"] if event["type"] == "run.diagnosis"]


async def test_malformed_replies_are_named_with_what_the_model_wrote(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url, MALFORMED) as client:
        run = await _ended(client)
        assert run["diagnosis"] == "malformed_replies"
        assert run["verdict"]["causes"] == ["malformed_replies"]
        assert run["verdict"]["text"].endswith("Diagnosed: malformed_replies.")
        assert (await client.get("/runs")).json()["items"][0]["diagnosis"] == "malformed_replies"
        document = await _diagnosis(client, run)
        assert document["cause"] == "malformed_replies"
        [diagnosis] = document["diagnoses"]
        assert (diagnosis["state"], diagnosis["severity"], diagnosis["first_iteration"]) == ("active", "warning", 1)
        [form] = diagnosis["evidence"]["forms"]
        assert (form["count"], form["text"]) == (48, MALFORMED.content)
        trajectory = (await client.get(f"/trajectories/{form['trajectory_id']}")).raise_for_status().json()
        assert trajectory["messages"][-1]["content"] == MALFORMED.content
        request = diagnosis["remedy"]["request"]
        assert request["warm_start"] == {"demonstrations": {"oracle": 64}}
        ForkRequest.model_validate(request)
        missing = {unexamined["cause"] for unexamined in document["not_examined"]}
        assert {"sampler_is_not_trainer", "weights_unchanged", "parser_drift", "tool_errors"} <= missing
        assert {"malformed_replies", "too_hard"}.isdisjoint(missing)
        [event] = await _events(client, run)
        assert event["iteration"] == diagnosis["named_at_iteration"]
        assert (event["data"]["cause"], event["data"]["state"]) == ("malformed_replies", "active")
        assert event["data"]["remedy"] == diagnosis["remedy"]
        metrics = (await client.get("/metrics")).text
        assert 'learnloop_runs_diagnosed{severity="warning"} 0.0' in metrics  # the run has ended


async def test_a_run_without_a_fault_has_no_diagnosis(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url, WRONG) as client:
        run = await _ended(client, iterations=2)
        document = await _diagnosis(client, run)
        assert (run["diagnosis"], document["cause"], document["diagnoses"]) == (None, None, [])
        assert await _events(client, run) == []


async def test_a_run_that_learns_nothing_for_an_unknown_reason_says_so(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url, WRONG) as client:
        run = await _ended(client)
        [diagnosis] = (await _diagnosis(client, run))["diagnoses"]
        assert (run["diagnosis"], diagnosis["named_at_iteration"]) == ("unexplained", 3)
        assert diagnosis["evidence"]["no_signal"] == dict.fromkeys("123", "constant_reward")
        assert (await client.get("/runs/01ARZ3NDEKTSV4RRFFQ69G5FAV/diagnosis")).status_code == 404


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ({"action": "warn"}, "completed"),
        ({"action": "pause"}, "completed"),
        ({"action": "pause", "severity": "warning"}, "paused"),
    ],
)
async def test_a_run_pauses_when_a_cause_is_serious_enough(
    data_dir: Path, database_url: str, rule: Any, status: str
) -> None:
    async with service(data_dir, database_url, MALFORMED) as client:
        run = await _ended(client, on_diagnosis=rule, iterations=5)
        assert run["status"] == status
        if status == "paused":
            assert run["progress"]["iterations_done"] < 5
            assert "malformed_replies: " in run["wait_reason"]
            assert "(on_diagnosis)" in run["wait_reason"]
            assert 'learnloop_runs_diagnosed{severity="warning"} 1.0' in (await client.get("/metrics")).text
            assert (await client.post(f"/runs/{run['run_id']}/resume")).status_code == 202
            run = await run_with(client, run["run_id"], "completed", "failed", "paused")
            assert run["status"] == "completed"
        events = [event["data"] for event in await _events(client, run)]
        assert [payload["cause"] for payload in events] == ["malformed_replies", "too_hard"]
        explained = (await _diagnosis(client, run))["diagnoses"][1]
        assert (explained["cause"], explained["explained_by"]) == ("too_hard", "malformed_replies")


async def test_a_worker_that_takes_over_keeps_to_the_rule(data_dir: Path, database_url: str) -> None:
    """The worker before saved the iteration that named the cause, and died before it paused the run."""
    async with service(data_dir, database_url, MALFORMED) as client:
        run = await _ended(client, on_diagnosis={"action": "pause", "severity": "warning"}, iterations=5)
        await execute(database_url, "UPDATE run SET status = 'queued' WHERE id = :id", id=run["run_id"])
        again = await run_with(client, run["run_id"], "completed", "failed", "paused")
        assert (again["status"], again["progress"]) == ("paused", run["progress"])
        assert len(await _events(client, run)) == 1


async def _learnloop(client: httpx.AsyncClient, *arguments: str, command: str = "diagnose") -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *learnloop("runs", command, *arguments, "--url", str(client.base_url)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_the_command_prints_causes_and_starts_the_fork(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url, MALFORMED) as client:
        run_id = (await _ended(client))["run_id"]
        code, printed = await _learnloop(client, run_id)
        assert code == 2
        assert "malformed_replies (warning) since iteration 1" in printed
        assert "48 times, as in " in printed
        assert repr(MALFORMED.content) in printed
        assert 'fork with: {"checkpoint": 0, "warm_start": {"demonstrations": {"oracle": 64}}}' in printed
        [unexamined] = [line for line in printed.splitlines() if line.startswith("not examined")]
        assert unexamined.startswith("not examined, and listed by --json: ")
        assert " causes. " in unexamined
        code, printed = await _learnloop(client, run_id, "--fork", "--json")
        assert code == 0
        fork_id = json.loads(printed)["fork"]["run_id"]
        assert (await client.get(f"/runs/{fork_id}")).json()["parent"] == {"run_id": run_id, "step": 0}
    async with service(data_dir, database_url, WRONG) as client:
        run_id = (await _ended(client, iterations=2))["run_id"]
        code, printed = await _learnloop(client, run_id)
        assert (code, printed.splitlines()[0]) == (0, "no cause of trouble was found")


async def test_a_run_that_is_taken_over_after_each_iteration_gets_the_same_diagnoses(
    data_dir: Path, database_url: str
) -> None:
    """Each pause ends the work, and the next worker reads the facts from the database."""
    async with service(data_dir, database_url, MALFORMED) as client:
        undisturbed = await _ended(client, iterations=5)
        run = await _ended(client, iterations=5, on_no_signal={"action": "pause", "after": 1})
        pauses = 0
        while run["status"] == "paused":
            pauses += 1
            assert (await client.post(f"/runs/{run['run_id']}/resume")).status_code == 202
            run = await run_with(client, run["run_id"], "completed", "failed", "paused")
        assert (run["status"], pauses) == ("completed", 4)
        documents = [
            re.sub(
                "[0-9A-Z]{26}",
                "ID",
                json.dumps([await _diagnosis(client, either_run), _data(await _events(client, either_run))]),
            )
            for either_run in (undisturbed, run)
        ]
        assert documents[0] == documents[1]
        assert "ID" in documents[0]


def _data(events: list[Any]) -> list[Any]:
    return [(event["iteration"], event["data"]) for event in events]


async def test_the_remedy_starts_a_fork(data_dir: Path, database_url: str) -> None:
    async with service(data_dir, database_url, MALFORMED) as client:
        run = await _ended(client)
        [diagnosis] = (await _diagnosis(client, run))["diagnoses"]
        forked = await client.post(f"/runs/{run['run_id']}/fork", json=diagnosis["remedy"]["request"])
        assert forked.status_code == 202, forked.text
        fork = (await client.get(f"/runs/{forked.json()['run_id']}")).json()
        assert fork["request"]["warm_start"]["demonstrations"] == {"oracle": 64}
        assert fork["diagnosis"] is None


async def test_two_runs_are_compared_by_settings_scenarios_and_causes(data_dir: Path, database_url: str) -> None:
    several = {"every": 4, "scenarios": 6, "test_scenarios": 0, "samples": 1}
    async with service(data_dir, database_url, MALFORMED) as client:
        first, second = [(await _ended(client, evaluation=several, iterations=number))["run_id"] for number in (3, 4)]
        code, printed = await _learnloop(client, first, second, command="compare")
        assert code == 0
        assert printed.count("diagnosed: malformed_replies") == 2
        assert "   iterations: 3 | 4" in printed
        assert "validation sampled: 0 points [0, 0], 6 scenarios, 0 won and 0 lost by B: no difference shown" in printed
        code, printed = await _learnloop(client, first, second, "--json", command="compare")
        comparison = json.loads(printed)
        assert comparison["settings"]["iterations"] == [3, 4]
        assert comparison["held_out"]["validation greedy"]["scenarios"] == 6
        assert comparison["causes"] == ["malformed_replies"] * 2
