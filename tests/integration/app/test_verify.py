"""Stored figures are computed again from stored trajectories."""

import asyncio
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from learnloop_service.app.api import results
from learnloop_service.app.api.heavy_reads import WAITING, HeavyReads
from learnloop_service.app.cli.main import app
from learnloop_service.app.schemas.results import Verification
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import until
from tests.fakes.scripted_chat import call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.changed_rows import change
from tests.integration.app.emails import make_run
from tests.integration.app.ended_runs import EndedRuns
from tests.integration.app.keyed import keyed
from tests.integration.app.sales_runs import MANY, SALES, completed
from tests.integration.app.served import served, settings_for


async def _verify(client: Any, run: Any) -> Any:
    return (await client.get(f"/runs/{run['run_id']}/verify")).raise_for_status().json()


async def test_a_run_is_what_its_trajectories_say(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        client, run = ended.client, ended.run
        verification = await _verify(client, run)
        assert (verification["ok"], verification["differences"]) == (True, [])
        # Baseline: 6 validation and 6 test rollouts; each iteration 8 rollouts, 6 validation, at the end 6 test ones.
        assert (verification["iterations"], verification["trajectories"]) == (3, 12 + 14 + 20 + 3)
        assert verification["node_scores"] == 3 * 4
        assert verification["figures"] > 4 * verification["trajectories"]


async def test_whatever_was_changed_is_found(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **MANY) as ended:
        client, run = ended.client, ended.run
        smallest = "reward + 2.220446049250313e-16"
        rewarded = "SELECT id FROM trajectory WHERE kind = 'train' AND reward BETWEEN 0.5 AND 1 ORDER BY seq LIMIT 1"
        await change(ended.database_url, f"UPDATE trajectory SET reward = {smallest} WHERE id = ({rewarded})")
        await change(ended.database_url, "UPDATE iteration SET reward_median = 0.125 WHERE iteration = 1")
        await change(
            ended.database_url,
            "UPDATE evaluation SET success = 0.5 WHERE iteration = 2 AND split = 'test' AND mode = 'greedy'",
        )
        await change(
            ended.database_url,
            "UPDATE reflection SET state = jsonb_set(state, '{node_scores,fact-lists}', '0.5') WHERE iteration = 2",
        )
        await change(
            ended.database_url,
            "UPDATE evaluation SET difference = jsonb_set(difference, '{low}', '0.01') "
            "WHERE iteration = 2 AND split = 'validation' AND mode = 'sampled'",
        )
        verification = await _verify(client, run)
        assert verification["ok"] is False
        differences = {
            (difference["iteration"], difference["what"]): difference for difference in verification["differences"]
        }
        assert differences.keys() == {
            (1, "reward"),
            (1, "reward_median"),
            (2, "test greedy success"),
            (2, "validation sampled difference"),
            (2, "node score of fact-lists"),
        }
        assert differences[1, "reward"]["stored"] - differences[1, "reward"]["recomputed"] < 3e-16
        assert differences[1, "reward"]["trajectory_id"]
        assert differences[2, "node score of fact-lists"]["stored"] == 0.5


async def test_an_outcome_that_was_changed_moves_everything_that_rests_on_it(
    ended_runs: EndedRuns, data_dir: Path
) -> None:
    async with ended_runs.copy(data_dir, **MANY) as ended:
        client, run = ended.client, ended.run
        one = "SELECT id FROM trajectory WHERE kind = 'train' AND iteration = 1 AND success ORDER BY seq LIMIT 1"
        await change(
            ended.database_url,
            f"UPDATE trajectory SET outcome = jsonb_set(outcome, '{{finish}}', '\"malformed\"') WHERE id = ({one})",
        )
        changed = {
            (difference["iteration"], difference["what"]) for difference in (await _verify(client, run))["differences"]
        }
        assert {(1, "reward"), (1, "reward_parts"), (1, "advantage"), (1, "reward_mean"), (1, "malformed")} <= changed
        assert any(what.startswith("node score of") for _, what in changed)
        assert all(iteration > 0 for iteration, _ in changed)


async def test_what_cannot_be_computed_is_a_difference(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        client, run = ended.client, ended.run
        one = "SELECT id FROM trajectory WHERE kind = 'train' AND score IS NOT NULL ORDER BY seq DESC LIMIT 1"
        await change(ended.database_url, f"UPDATE trajectory SET outcome = '{{}}' WHERE id = ({one})")
        [difference] = (await _verify(client, run))["differences"]
        assert "reward() raised KeyError" in difference["recomputed"]


async def test_an_environment_that_does_not_learn_is_checked_too(data_dir: Path, database_url: str) -> None:
    async def answer(request: Any) -> Any:
        right = request["temperature"] and request["seed"] % 2
        return call("return_final_answer", answer="no idea", sources=["x"] if right else [])

    async with scripted_chat(answer) as chat:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(chat.url)) as client:  # type: ignore[arg-type]
            run = await completed(client, **{name: SALES[name] for name in ("iterations", "evaluation")})
            verification = await _verify(client, run)
            assert (verification["ok"], verification["differences"], verification["node_scores"]) == (True, [], 0)
            assert (await client.get("/runs/none/verify")).status_code == 404


async def test_the_command_says_what_differs(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended:
        client, run = ended.client, ended.run

        async def command(*options: str) -> Any:
            arguments = ["runs", "verify", run["run_id"], "--url", str(client.base_url), *options]
            return await asyncio.to_thread(CliRunner().invoke, app, arguments)

        good = await command()
        assert good.exit_code == 0
        assert "all figures agree" in good.output
        await change(ended.database_url, "UPDATE iteration SET reward_mean = 7 WHERE iteration = 1")
        bad = await command()
        assert bad.exit_code == 1
        assert "reward_mean" in bad.output
        document = json.loads((await command("--json")).stdout)
        assert [difference["what"] for difference in document["differences"]] == ["reward_mean"]


async def test_verifications_take_turns_apart_from_other_requests(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, off the event loop; a project that asks for many makes another wait for one of them only."""
    go_on = threading.Event()
    begun: list[str] = []
    arrived: list[str] = []
    do = HeavyReads.do

    async def noted(self: HeavyReads, project: str, read: Any) -> Any:
        arrived.append(project)
        return await do(self, project, read)

    async def slow(sessions: Any, data_dir: Path, run: Any) -> Verification:
        assert threading.current_thread() is not threading.main_thread()
        begun.append(run.model_project)
        go_on.wait(60)
        return Verification.model_construct(
            run_id=run.id, ok=True, iterations=0, trajectories=0, figures=0, node_scores=0, difference_count=0,
            differences=[], verified_at=datetime.now(UTC),
        )  # fmt: skip

    monkeypatch.setattr(results, "verify", slow)
    monkeypatch.setattr(HeavyReads, "do", noted)
    async with keyed(data_dir, database_url) as service:
        runs = {project: await make_run(service.database, project=project) for project in ("many", "one")}
        headers = {project: await service.headers(project) for project in runs}

        def ask(project: str) -> Any:
            path = f"/runs/{runs[project]}/verify"
            return asyncio.create_task(service.client.get(path, headers=headers[project]))

        tasks = [ask("many") for _ in range(WAITING + 3)]
        await until(lambda: sum(task.done() for task in tasks) == 2)
        refused = [task.result() for task in tasks if task.done()]
        assert {response.status_code for response in refused} == {429}
        assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
        other = ask("one")
        assert (await service.client.get(f"/runs/{runs['one']}", headers=headers["one"])).status_code == 200
        await until(lambda: "one" in arrived)
        go_on.set()
        assert (await other).status_code == 200
        assert [(await task).status_code for task in tasks].count(200) == WAITING + 1
    assert begun.index("one") <= 2
