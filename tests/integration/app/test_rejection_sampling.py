"""The best rollouts of a run, or of an evaluation, become demonstrations: over HTTP, by command, by the client."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from typer.testing import CliRunner
from ulid import ULID

from learnloop import AsyncLearnloop
from learnloop_service.app.cli.main import app
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, Trajectory
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import make_run
from tests.integration.app.imitating_runs import CALL, RESULT, TOOL, USER
from tests.integration.app.served import served, settings_for
from tests.stored_evaluations import COMPARISON

EXAMPLE, CALLS = {"role": "assistant", "content": "for example"}, {"role": "assistant", "tool_calls": [CALL]}
SYSTEM, SUMMARY = {"role": "system", "content": "Sum up."}, {"role": "assistant", "content": "all of it"}
UNKNOWN = {**CALL, "function": {"name": "delete", "arguments": "{}"}}
MOST_TOKENS = 256


def reply_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def rollout(id: str, scenario: str, reward: float | None, **more: Any) -> dict[str, Any]:
    """A rollout that shows an example, calls a tool, and ends with its own id."""
    return {
        "id": id,
        "kind": "train",
        "iteration": 1,
        "split": "train",
        "mode": "sampled",
        "model": "learnloop/a",
        "step": 0,
        "scenario_id": scenario,
        "scenario": {"task": {}, "reference": {}},
        "messages": [USER, EXAMPLE, USER, CALLS, RESULT, reply_message(id)],
        "tokens": [{"message": index, "texts": ["a", "b"], "logprobs": [-1.0, -1.0]} for index in (3, 5)],
        "tools": [TOOL],
        "additional_histories": [],
        "outcome": {},
        "score_parts": {},
        "reward": reward,
        "reward_parts": {},
        "error": None,
        "turns": 2,
        "prompt_tokens": 1,
        "completion_tokens": 4,
        "seconds": 0.1,
        "started_at": datetime.now(UTC),
    } | more


LONG = [{"message": 5, "texts": ["a"] * MOST_TOKENS, "logprobs": [-1.0] * MOST_TOKENS}]
ROLLOUTS = [
    rollout("poor", "one", 0.4),
    rollout("good", "one", 0.7),
    rollout("best", "one", 0.9),
    rollout("as good", "one", 0.7),
    rollout("failed", "two", 1.0, error="it took too long"),
    rollout("cut off", "two", 1.0, tokens=LONG),
    rollout("unknown tool", "two", 1.0, messages=[USER, {**CALLS, "tool_calls": [UNKNOWN]}], tokens=[]),
    rollout("unscored", "two", None),
    rollout("held out", "three", 1.0, kind="evaluation", split="validation"),
    rollout("tested", "three", 1.0, kind="evaluation", split="test", mode="greedy"),
    rollout("sample email", "three", 1.0, kind="showcase"),
    rollout("just enough", "four", 0.5, additional_histories=[{"messages": [SYSTEM, CALLS, SUMMARY], "tools": [TOOL]}]),
]


async def recorded(database: Database, rollouts: list[dict[str, Any]]) -> str:
    """A completed run with these rollouts; its id."""
    run_id = await make_run(database, environment="email_search")
    async with database.begin() as tx:
        await tx.execute(
            insert(Trajectory), [row | {"run_id": run_id, "id": f"{run_id} {row['id']}"} for row in rollouts]
        )
    return run_id


async def test_the_best_rollouts_become_demonstrations(data_dir: Path, database_url: str, database: Database) -> None:
    async with served(settings_for(data_dir, database_url, max_concurrent_runs=0), ScriptedLoop()) as client:
        run_id = await recorded(database, ROLLOUTS)
        url, selection = f"/runs/{run_id}/demonstrations", {"name": "best", "min_reward": 0.5, "per_scenario": 2}
        stored = (await client.post(url, json=selection)).raise_for_status().json()
        figures = {name: stored[name] for name in ("rollouts", "kept", "scenarios", "unfit", "count", "version")}
        assert figures == {"rollouts": 7, "kept": 3, "scenarios": 2, "unfit": 2, "count": 4, "version": 1}
        assert stored["origin"] == {"source": "run", "run_id": run_id, "min_reward": 0.5, "per_scenario": 2}

        demonstrations = (await client.get(stored["links"]["self"])).json()["demonstrations"]
        assert [demonstration["messages"][-1]["content"] for demonstration in demonstrations] == [
            "just enough",
            "all of it",
            "best",
            "good",
        ]
        assert demonstrations[2] == {
            "messages": [USER, {**EXAMPLE, "weight": 0}, USER, CALLS, RESULT, reply_message("best")],
            "tools": [TOOL],
        }, "as it was sampled; what was only shown is not learnt"
        assert demonstrations[1]["messages"] == [SYSTEM, {**CALLS, "weight": 0}, SUMMARY], "a call is learnt once"
        assert (await client.post(url, json=selection)).json() == stored, "the same again"

        command = ("demonstrations", "from-run", "best", run_id, "--min-reward", "0.5", "--url", str(client.base_url))
        printed = await asyncio.to_thread(CliRunner().invoke, app, list(command))
        assert printed.stdout.splitlines()[:2] == [
            "kept 2 of 7 rollouts, of 2 scenarios; 2 cannot be trained on",
            "stored 3 demonstrations as best@2",
        ]
        async with AsyncLearnloop(str(client.base_url)) as learnloop:
            again = await learnloop.run(run_id).store_demonstrations("best", min_reward=0.5, per_scenario=2)
            assert (again["version"], again["sha256"]) == (3, stored["sha256"])

        request = {"warm_start": {"demonstrations": {"dataset": "best"}}, "iterations": 0}
        started = (await client.post("/learn-loop", json=request)).raise_for_status().json()
        refused = await client.post(f"/runs/{started['run_id']}/demonstrations", json=selection)
        assert (refused.status_code, "is queued" in refused.json()["detail"]) == (409, True)


def attempt(slot: str, scenario: str, reward: float | None, **more: Any) -> dict[str, Any]:
    """A rollout of an evaluation, which ends with its slot."""
    return rollout(slot, scenario, reward, kind="evaluation", slot=slot, iteration=None) | more


async def evaluated(database: Database, status: str, attempts: list[dict[str, Any]]) -> str:
    """An evaluation of training scenarios by the models `base` and `good`; its id."""
    id = str(ULID())
    async with database.begin() as tx:
        request = COMPARISON | {"split": "train"}
        tx.add(EvaluationJob(id=id, project="learnloop", status=status, request=request, total=len(attempts)))
        await tx.flush()
        for row in attempts:  # one by one, because their order is that of `seq`
            await tx.execute(insert(Trajectory), row | {"evaluation_id": id, "id": f"{id} {row['id']}"})
    return id


async def test_so_do_those_of_an_evaluation_of_training_scenarios(
    data_dir: Path, database_url: str, database: Database
) -> None:
    attempts = [
        attempt("0/0/1", "one", 0.9),
        attempt("0/0/0", "one", 0.9),
        attempt("1/0/0", "one", 1.0),
        attempt("0/1/0", "two", 0.6),
        attempt("1/1/0", "two", 0.2),
        attempt("0/2/0", "three", 1.0, split="validation"),
        attempt("0/3/0", "three", 1.0, kind="what_if"),
    ]
    async with served(settings_for(data_dir, database_url, max_concurrent_runs=0), ScriptedLoop()) as client:
        id = await evaluated(database, "completed", attempts)
        selection = {"name": "best", "min_reward": 0.5}
        url = f"/evaluations/{id}/demonstrations"
        for model, best in (({"model": "base"}, ["0/0/0", "0/1/0"]), ({}, ["1/0/0", "0/1/0"])):
            stored = (await client.post(url, json=selection | model)).raise_for_status().json()
            assert stored["origin"] == {
                "source": "evaluation",
                "evaluation_id": id,
                "min_reward": 0.5,
                "per_scenario": 1,
                **model,
            }
            assert (stored["rollouts"], stored["kept"]) == (3 if model else 5, 2)
            demonstrations = (await client.get(stored["links"]["self"])).json()["demonstrations"]
            assert [demonstration["messages"][-1]["content"] for demonstration in demonstrations] == best
        command = ["demonstrations", "from-evaluation", "best", id, "--min-reward", "0.5", "--model", "good"]
        printed = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--url", str(client.base_url)])
        assert printed.stdout.splitlines()[:2] == [
            "kept 1 of 2 rollouts, of 1 scenario; 0 cannot be trained on",
            "stored 1 demonstration as best@3",
        ]
        running, held_out = (
            await evaluated(database, "running", attempts),
            await evaluated(database, "completed", attempts[5:]),
        )
        for other, model, status, words in (
            (running, {}, 409, f"Evaluation {running} is running: its rollouts can become demonstrations once"),
            (held_out, {}, 409, f"no finished rollouts of training scenarios in evaluation {held_out}."),
            (id, {"model": "best"}, 422, "There is no model 'best'; there are: base, good."),
            ("none", {}, 404, "There is no evaluation 'none'."),
        ):
            refused = await client.post(f"/evaluations/{other}/demonstrations", json=selection | model)
            assert (refused.status_code, words in refused.json()["detail"]) == (status, True), refused.json()


async def test_what_gives_no_demonstrations_is_said(data_dir: Path, database_url: str, database: Database) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = await recorded(database, ROLLOUTS)
        big = rollout("big", "one", 1.0, messages=[USER, reply_message("x" * 1_100_000)], tokens=[])
        cases: list[tuple[str, dict[str, Any], int, str]] = [
            (run_id, {"min_reward": 1.5}, 409, "Of 7 training rollouts of run "),
            (run_id, {"min_reward": 1.5}, 409, "the highest is 1."),
            (await recorded(database, ROLLOUTS[5:7]), {"min_reward": 1}, 409, "none that can be trained on (2 cannot)"),
            (
                await recorded(database, ROLLOUTS[8:11]),
                {"min_reward": 0},
                409,
                "There are no finished rollouts of training scenarios in run ",
            ),
            (run_id, {"min_reward": 0.5, "per_scenario": 0}, 422, "per_scenario"),
            (run_id, {}, 422, "min_reward"),
            (run_id[::-1], {"min_reward": 0}, 404, "There is no run"),
        ]
        for id, selection, status, words in cases:
            refused = await client.post(f"/runs/{id}/demonstrations", json={"name": "none", **selection})
            assert (refused.status_code, words in refused.json()["detail"]) == (status, True), refused.json()
        assert (await client.get("/demonstrations")).json()["items"] == []
    async with served(settings_for(data_dir, database_url, max_graph_bytes=1_000_000), ScriptedLoop()) as client:
        id = await recorded(database, [big])
        refused = await client.post(f"/runs/{id}/demonstrations", json={"name": "none", "min_reward": 0})
        assert (refused.status_code, "raise min_reward" in refused.json()["detail"]) == (409, True)
