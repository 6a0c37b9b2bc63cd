"""The failure map over HTTP and in the terminal: of evaluations and of runs, now and before."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.app.db.tables import EvaluationJob
from tests.fakes.failing_models import MODELS, compared, failing_models
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import make_run
from tests.integration.app.ended_evaluations import ended
from tests.integration.app.keyed import keyed
from tests.integration.app.run_commands import Ran, run_command
from tests.integration.app.served import run_with, served, settings_for
from tests.stored_evaluations import COMPARISON, WHAT_IF

UNREAD = "wrong_answer/read_source"
GAVE_UP = "gave_up/found_source"
UNKNOWN = "malformed/unknown_tool"
REPEATS = "out_of_turns/repeats/search_inbox"


async def _failures(client: httpx.AsyncClient, **query: Any) -> Any:
    return (await client.get("/failures", params=query)).raise_for_status().json()


async def _refused(client: httpx.AsyncClient, **query: Any) -> tuple[int, str]:
    reply = await client.get("/failures", params=query)
    assert reply.headers["content-type"] == "application/problem+json"
    return reply.status_code, reply.json()["detail"]


async def _run_failures(client: httpx.AsyncClient, *arguments: str) -> Ran:
    return await run_command(client, *arguments, group="failures")


async def test_an_evaluations_failures_are_compared_with_those_of_its_first_model(
    data_dir: Path, database_url: str
) -> None:
    async with failing_models(data_dir, database_url) as client:
        id = await compared(client)
        await ended(client, id)
        failing = await _failures(client, evaluation=id)
        now, before = failing["now"], failing["before"]
        assert (before["name"], before["tasks"], before["solved"]["tasks"]) == ("before", 4, 1)
        assert (now["name"], now["source"], now["left_out"]) == ("after", f"evaluation {id}, 16 judged", 0)
        assert now["solved"] == {
            "tasks": 1,
            "mean": 0.25,
            "low": pytest.approx(0.046, abs=1e-3),
            "high": pytest.approx(0.699, abs=1e-3),
        }
        patterns = {pattern["id"]: pattern for pattern in failing["patterns"]}
        assert [(id, pattern["before"]["tasks"], pattern["now"]["tasks"]) for id, pattern in patterns.items()] == [
            (GAVE_UP, 2, 1),
            (UNKNOWN, 1, 0),
            (REPEATS, 0, 1),
            (UNREAD, 0, 1),
        ]
        assert patterns[UNREAD]["sentence"] == "wrong answer: found the source and did not read it"
        assert patterns[GAVE_UP]["became"] == [{"pattern": None, "tasks": 1}, {"pattern": GAVE_UP, "tasks": 1}]
        assert patterns[UNKNOWN]["became"] == [{"pattern": REPEATS, "tasks": 1}]
        assert failing["lost_tasks"] == 1
        [lost] = failing["lost"]
        assert lost["pattern"] == UNREAD
        for trajectory_id, is_solved in ((lost["trajectory_id"], False), (lost["before_trajectory_id"], True)):
            whole = (await client.get(f"/trajectories/{trajectory_id}")).raise_for_status().json()
            assert (whole["success"], whole["scenario_id"]) == (is_solved, lost["scenario_id"])
        behind = patterns[UNREAD]["rollouts"]
        assert len(behind) == 2
        assert lost["trajectory_id"] in {rollout["trajectory_id"] for rollout in behind}
        assert "is not" in behind[0]["reason"]
        assert "expected" in behind[0]["why"]

        first = await _failures(client, evaluation=id, model="before")
        assert (first["before"], first["lost"], first["now"]["name"]) == (None, [], "before")
        assert [pattern["id"] for pattern in first["patterns"]] == [GAVE_UP, UNKNOWN]

        printed = await _run_failures(client, id)
        assert printed.exit_code == 0, printed.stderr
        assert (
            f"{GAVE_UP})\n   before  ██████████░░░░░░░░░░   2 tasks, 50% [15, 85]; became: 1 solved\n" in printed.stdout
        )
        assert "1 task solved before and failing now\n" in printed.stdout
        assert json.loads((await _run_failures(client, id, "--json")).stdout) == failing


async def test_two_evaluations_are_compared_by_the_tasks_that_both_have(data_dir: Path, database_url: str) -> None:
    async with failing_models(data_dir, database_url) as client:
        ids = [
            await compared(client, [MODELS[0]], scenarios=2),
            await compared(client, [MODELS[1]]),
            await compared(client, [MODELS[1]], seed=77),
        ]
        for id in ids:
            await ended(client, id)
        earlier, later, elsewhere = ids
        failing = await _failures(client, evaluation=later, before=earlier)
        assert (failing["now"]["tasks"], failing["now"]["left_out"], failing["before"]["left_out"]) == (2, 2, 0)
        assert {pattern["id"]: pattern["now"]["tasks"] for pattern in failing["patterns"]} == {UNREAD: 1, GAVE_UP: 0}
        assert (await _failures(client, evaluation=later))["before"] is None
        status, why = await _refused(client, evaluation=later, before=elsewhere)
        assert (status, why) == (404, "The two have no task in common. Compare rollouts of the same scenarios.")
        assert await _refused(client, evaluation=later, before="3") == (
            422,
            "Only a run has iterations: name an evaluation by its id.",
        )
        assert await _refused(client, evaluation=later, model="clever") == (
            422,
            "There is no model 'clever'; there are: after.",
        )
        assert await _refused(client, evaluation=later, split="test") == (
            422,
            "Only a run has a choice of iteration, split and mode.",
        )
        assert await _refused(client, evaluation="nothing") == (404, "There is no evaluation 'nothing'.")
        assert await _refused(client) == (422, "Name an evaluation, or a run; not both.")
        assert await _refused(client, evaluation=later, run=later) == (422, "Name an evaluation, or a run; not both.")


async def test_a_runs_newest_evaluation_is_compared_with_its_first(data_dir: Path, database_url: str) -> None:
    loop = ScriptedLoop(held_out={0: [True, False, False], 1: [True, True, False], 2: [False, True, True]})
    async with served(settings_for(data_dir, database_url), loop) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        failing = await _failures(client, run=run_id)
        assert [(failing[side]["name"], failing[side]["solved"]["tasks"]) for side in ("before", "now")] == [
            ("iteration 0", 1),
            ("iteration 2", 2),
        ]
        assert failing["now"]["source"] == f"run {run_id}, validation, sampled"
        [pattern] = failing["patterns"]
        assert (pattern["id"], pattern["before"]["tasks"], pattern["now"]["tasks"]) == ("unsuccessful/no_call", 2, 1)
        assert [task["scenario_id"] for task in failing["lost"]] == ["validation:0"]
        middle = await _failures(client, run=run_id, before=1)
        assert (middle["before"]["name"], middle["lost_tasks"]) == ("iteration 1", 1)
        trained = await _failures(client, run=run_id, split="train", iteration=1)
        assert (trained["now"]["source"], trained["before"]) == (f"run {run_id}, train, sampled", None)
        has = "It has: validation, sampled, of iterations 0, 1, 2; train, sampled, of iterations 1, 2."
        assert await _refused(client, run=run_id, iteration=7) == (404, f"Run {run_id} has no such rollouts. {has}")
        assert await _refused(client, run=run_id, mode="greedy") == (404, f"Run {run_id} has no such rollouts. {has}")
        assert await _refused(client, run=run_id, before=9) == (404, f"Run {run_id} has no such rollouts. {has}")
        assert await _refused(client, run=run_id, before="nothing") == (404, "There is no evaluation 'nothing'.")
        assert (await _refused(client, run=run_id, model="m"))[0] == 422
        printed = await _run_failures(client, "latest", "--before", "1")
        assert printed.stdout.startswith("before  █████████████░░░░░░░   2 tasks, 67% [21, 94] solved: iteration 1 (")
        refused = await _run_failures(client, "latest", "--iteration", "7")
        assert (refused.exit_code, has in refused.stderr) == (1, True)


async def test_failures_of_other_projects_seem_not_to_exist(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        ours, theirs = [await make_run(service.database, project=project) for project in ("mail", "sales")]
        jobs = {"ours": COMPARISON, "theirs": COMPARISON, "what-if": COMPARISON | {"what_if": WHAT_IF}}
        async with service.database.begin() as tx:
            for id, request in jobs.items():
                project = "sales" if id == "theirs" else "mail"
                tx.add(EvaluationJob(id=id, project=project, status="completed", request=request, total=1))
        headers = await service.headers("mail")
        unjudged = "There are no judged rollouts of good (evaluation ours, 0 judged): wait for some, unless they were "
        for query, status, why in (
            ({"run": ours}, 404, f"Run {ours} has no such rollouts. It has: none yet."),
            ({"run": theirs}, 404, f"There is no run {theirs!r}."),
            ({"evaluation": "ours"}, 404, f"{unjudged}deleted because of their age."),
            ({"evaluation": "theirs"}, 404, "There is no evaluation 'theirs'."),
            ({"evaluation": "ours", "before": "theirs"}, 404, "There is no evaluation 'theirs'."),
            (
                {"evaluation": "what-if"},
                422,
                "Evaluation what-if is a what-if or a rejudging: name one that compares models.",
            ),
        ):
            reply = await service.client.get("/failures", params=query, headers=headers)
            assert (reply.status_code, reply.json()["detail"]) == (status, why)
        assert (await service.client.get("/failures", params={"run": ours})).status_code == 401
