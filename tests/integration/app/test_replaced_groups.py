"""A run that replaces the groups that teach nothing, from its request to its report."""

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learnloop_service.app.db.database import Database
from learnloop_service.app.runs.resume_point import resume_of
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.changed_rows import change
from tests.integration.app.runs_without_signal import RUN, report_agrees, started
from tests.integration.app.served import ended, served, settings_for
from tests.integration.training.scripted_runs import mixed, skilled

REPLACING = RUN | {"groups_per_iteration": 3, "replace_groups": True}


async def test_replacements_are_marked_and_every_figure_leaves_them_out(
    data_dir: Path, database_url: str, database: Database
) -> None:
    async with scripted_chat(skilled(mixed)) as model:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(model.url)) as client:  # type: ignore[arg-type]
            run = await ended(client, (await started(client, **REPLACING))["run_id"])
            assert run["status"] == "completed"
            run_path = f"/runs/{run['run_id']}"

            async def read(path: str, **params: Any) -> Any:
                return (await client.get(f"{run_path}/{path}", params=params)).raise_for_status().json()

            rollouts = (await read("trajectories", kind="train", limit=200))["items"]
            extra = [rollout for rollout in rollouts if rollout["replaces"] is not None]
            assert 0 < len(extra) < len(rollouts)
            assert {rollout["inclusion"] for rollout in rollouts if rollout["replaces"] is None} == {1.0}
            for figures in run["iterations"][1:]:
                iteration_rollouts = [rollout for rollout in rollouts if rollout["iteration"] == figures["iteration"]]
                originals = [rollout for rollout in iteration_rollouts if rollout["replaces"] is None]
                assert figures["success"] == sum(rollout["success"] for rollout in originals) / len(originals)
                assert figures["rewards"]["count"] == len(originals) == 6
                replaced = {rollout["replaces"] for rollout in iteration_rollouts} - {None}
                before = [rollout for rollout in rollouts if rollout["iteration"] == figures["iteration"] - 1]
                same = [
                    rollout["scenario_id"]
                    for rollout in before
                    if rollout["replaces"] is None and not rollout["advantage"]
                ]
                assert Counter(same) == dict.fromkeys(replaced, 2)
                assert {rollout["inclusion"] for rollout in iteration_rollouts if rollout["replaces"]} <= {
                    len(replaced) / 3
                }
            phases = [
                event for event in (await read("events", limit=200))["items"] if event["type"] == "phase.completed"
            ]
            judged = Counter(event["iteration"] for event in phases if event["data"]["phase"] == "judge")
            assert judged == {1: 1, 2: 1, 3: 1, 4: 1}
            histogram = await read("rewards")
            assert [sum(iteration["counts"]) for iteration in histogram["iterations"]] == [6] * 4
            table = csv.DictReader(io.StringIO((await client.get(f"{run_path}/tables/rollouts")).text))
            assert sum(row["replaces"] != "" for row in table) == len(extra)
            verification = await read("verify")
            assert (verification["ok"], verification["differences"]) == (True, [])
            await report_agrees(client, run["run_id"], data_dir / "run.html")
            last = [rollout for rollout in rollouts if rollout["iteration"] == 4 and rollout["replaces"] is None]
            idle = [rollout["scenario_id"] for rollout in last if not rollout["advantage"]]
            assert sorted([*await taught_nothing(database, run["run_id"])] * 2) == sorted(idle)
            await change(database_url, f"UPDATE trajectory SET replaces = 'x' WHERE id = '{extra[0]['id']}'")
            assert [difference["what"] for difference in (await read("verify"))["differences"]] == ["replaces"]
            await change(database_url, f"DELETE FROM trajectory WHERE id = '{last[0]['id']}'")
            assert await taught_nothing(database, run["run_id"]) == (), "a user's rollouts can be deleted"


async def taught_nothing(database: Database, run_id: str) -> Sequence[str]:
    """The scenarios that the next iteration of a run that is continued replaces."""
    resume = await resume_of(database, run_id)
    assert resume is not None
    return resume.snapshot.taught_nothing


async def test_a_replacement_can_be_continued_with_its_own_seed(data_dir: Path, database_url: str) -> None:
    """Its seed follows from its place among the replacements."""
    seeds: list[int] = []
    answer = skilled(mixed)

    async def noted(request: Mapping[str, Any]) -> Reply:
        seeds.append(request["seed"])
        reply: Reply = await answer(request)
        return reply

    async with scripted_chat(noted) as model:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(model.url)) as client:  # type: ignore[arg-type]
            run = await ended(client, (await started(client, **REPLACING, keep_rollouts=True))["run_id"])
            listed = await client.get(f"/runs/{run['run_id']}/trajectories", params={"limit": 200})
            one = next(rollout for rollout in listed.json()["items"] if rollout["replaces"] is not None)
            run_seeds = set(seeds)
            seeds.clear()
            body = {"turn": 1, "samples": 1, "seed": "own"}
            posted = await client.post(f"/trajectories/{one['id']}/what-if", json=body)
            assert posted.status_code == 202, posted.text
            path = f"/evaluations/{posted.json()['evaluation_id']}"
            while (await client.get(path)).raise_for_status().json()["status"] not in ("completed", "failed"):
                await asyncio.sleep(0.05)
            assert set(seeds) <= run_seeds
            assert seeds
