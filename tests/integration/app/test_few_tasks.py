"""A run on a few tasks of one's own: its page's data, report, verdict and verifiers count the same held-out tasks."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.app.reports.verify import read_report
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.changed_rows import change
from tests.integration.app.own_agent_runs import AGENTS, by_seed, get
from tests.integration.app.run_commands import run_command
from tests.integration.app.served import run_with, served, settings_for

SPLITS = ["validation"] * 6 + ["test"] * 3 + ["train"] * 9
TASKS: list[Any] = [
    {"task": {"question": f"{number}?"}, "reference": {"answer": "yes"}, "split": split}
    for number, split in enumerate(SPLITS)
]


def body(**evaluation: Any) -> dict[str, Any]:
    config = {"scenarios": TASKS, "runner": {"python": f"{AGENTS}:scoring"}}
    return {
        "environment": {"name": "agent", "config": config},
        "judge": {"name": "reported"},
        "iterations": 1,
        "groups_per_iteration": 2,
        "rollouts_per_group": 4,
        "seed": 3,
        "evaluation": evaluation,
    }


async def ended(client: httpx.AsyncClient, request: dict[str, Any]) -> tuple[Any, Any]:
    accepted = (await client.post("/learn-loop", json=request)).raise_for_status().json()
    return accepted, await run_with(client, accepted["run_id"], "completed", "failed")


@pytest.mark.parametrize("asked", [{}, {"scenarios": 24, "test_scenarios": 64, "samples": 2}])
async def test_six_validation_and_three_test_tasks_are_counted_as_such_everywhere(
    data_dir: Path, database_url: str, asked: dict[str, Any]
) -> None:
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes")
    async with scripted_chat(by_seed) as chat, served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
        accepted, run = await ended(client, body(**asked))
        assert run["status"] == "completed"
        counts = {"validation": 6, "test": 3}
        stored = run["request"]["evaluation"]
        assert (stored["scenarios"], stored["test_scenarios"], stored["seed"]) == (6, 3, 0)
        limits = "evaluation.test_scenarios is 64, and the environment has 3 test scenarios: each is used once."
        assert (limits in accepted["warnings"]) == bool(asked)
        assert {(evaluation["split"], evaluation["scenarios"]) for evaluation in run["evaluations"]} == set(
            counts.items()
        )
        path = f"/runs/{run['run_id']}"
        baseline = (await get(client, f"{path}/trajectories?kind=evaluation&iteration=0&limit=200"))["items"]
        assert len(baseline) == (6 + 3) * 3, "each task once greedy and twice sampled"
        assert set(Counter((rollout["scenario_id"], rollout["mode"]) for rollout in baseline).values()) == {1, 2}
        assert (run["verdict"]["on"]["scenarios"], "6 validation scenarios" in run["verdict"]["text"]) == (6, True)
        assert (await get(client, f"{path}/verify"))["ok"]
        description = (await run_command(client, "show", run["run_id"])).stdout
        assert "6 held-out tasks (validation)" in description
        assert "3 held-out tasks (test)" in description
        expected = accepted["expected"]
        rollouts = {"baseline": len(baseline), "training": 2 * 4, "evaluations": 27, "replacements": 0}
        assert expected == {"rollouts": rollouts, "seconds": None, "usd": None, "disk_bytes": None}
        assert sum(expected["rollouts"].values()) == run["rollouts"]
        again, _ = await ended(client, body(**asked))
        assert again["expected"]["seconds"] == pytest.approx(run["cost"]["seconds"])
        await _report_verifies(client, run, data_dir)


async def _report_verifies(client: httpx.AsyncClient, run: Any, data_dir: Path) -> None:
    file, url = str(data_dir / "report.html"), ["--url", str(client.base_url)]
    for arguments in ([run["run_id"], "--output", file], ["verify", file]):
        invocation = await asyncio.to_thread(CliRunner().invoke, app, ["report", *arguments, *url])
        assert invocation.exit_code == 0, invocation.output
    content = Path(file).read_text()
    items = read_report(content)["evaluations"]["items"]
    assert {(item["split"], item["scenarios"]) for item in items} == {("validation", 6), ("test", 3)}
    assert "of 3 tasks" in content


async def test_runs_with_other_seeds_are_evaluated_alike_unless_asked_otherwise(
    data_dir: Path, database_url: str
) -> None:
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes")
    async with scripted_chat(by_seed) as chat, served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
        small = {"scenarios": 1, "test_scenarios": 1, "samples": 1}
        seeds = [(3, {}), (4, {}), (3, {"seed": 9})]
        runs = [(await ended(client, {**body(**small, **more), "seed": seed}))[1] for seed, more in seeds]
        first = [evaluation["success"] for evaluation in runs[0]["evaluations"] if evaluation["iteration"] == 0]
        assert [evaluation["success"] for evaluation in runs[1]["evaluations"] if evaluation["iteration"] == 0] == first
        ids = [run["run_id"] for run in runs]
        alike = await get(client, f"/runs/{ids[0]}/comparison?other={ids[1]}")
        assert {row["difference"]["scenarios"] for row in alike["held_out"]} == {1}
        other = await get(client, f"/runs/{ids[0]}/comparison?other={ids[2]}")
        assert (other["run_held_out_seed"], other["other_held_out_seed"]) == (0, 9)
        assert {row["difference"] for row in other["held_out"]} == {None}
        printed = (await run_command(client, "compare", ids[0], ids[2])).stdout
        assert "drawn with different seeds (evaluation.seed), A's with 0 and B's with 9" in printed
        assert "different seeds" not in (await run_command(client, "compare", ids[0], ids[1])).stdout


async def test_a_fork_of_a_run_of_an_earlier_version_keeps_its_held_out_scenarios(
    data_dir: Path, database_url: str
) -> None:
    settings = settings_for(data_dir, database_url, agent_modules="tests.fakes")
    async with scripted_chat(by_seed) as chat, served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
        _, parent = await ended(client, body(scenarios=2, test_scenarios=1, samples=1))
        await change(database_url, "UPDATE run SET request = request #- '{evaluation,seed}'")
        posted = await client.post(f"/runs/{parent['run_id']}/fork", json={"iterations": 1, "seed": 8})
        fork = await run_with(client, posted.raise_for_status().json()["run_id"], "completed", "failed")
        assert fork["request"]["evaluation"]["seed"] == 3
        assert (await get(client, f"/runs/{fork['run_id']}/verify"))["ok"]
        compared = await get(client, f"/runs/{parent['run_id']}/comparison?other={fork['run_id']}")
        assert (compared["run_held_out_seed"], compared["other_held_out_seed"]) == (3, 3)
