"""What can be read of a run beside its saved figures: rollouts that have just finished, and all rewards, counted."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from learnloop_service.app.runs.reward_histogram import BINS, COUNTS
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for
from tests.opened_database import execute

RUN = {
    "iterations": 1,
    "groups_per_iteration": 2,
    "rollouts_per_group": 2,
    "evaluation": {"every": 1, "scenarios": 1, "test_scenarios": 0, "samples": 1},
}
ANSWER = json.dumps({"answer": "no idea", "sources": ["x"]})


async def _damage_rollouts(database_url: str) -> None:
    await execute(database_url, "UPDATE journal SET value = 'torn' WHERE name LIKE 'rollout/%'")


async def test_finished_rollouts_can_be_read_before_their_iteration_is_saved(data_dir: Path, database_url: str) -> None:
    first, others = asyncio.Event(), asyncio.Event()

    async def answer(_: Mapping[str, Any]) -> Reply:
        if first.is_set():
            await others.wait()
        first.set()
        return Reply((("return_final_answer", ANSWER),))

    async with (
        scripted_chat(answer) as chat,
        served(settings_for(data_dir, database_url), cast(Any, learn_loop), ScriptedBackend(chat.url)) as client,
    ):
        run_id = (await client.post("/learn-loop", json=RUN)).raise_for_status().json()["run_id"]

        async def finished() -> Any:
            return (await client.get(f"/runs/{run_id}/rollouts")).raise_for_status().json()

        try:
            document = await answered(finished, lambda document: document["total"] == 1)
            [rollout] = document["items"]
            assert (rollout["iteration"], rollout["error"], rollout["turns"]) == (0, None, 1)
            assert rollout["purpose"].startswith("validation.")
            assert rollout["messages"][-1]["tool_calls"][0]["function"]["arguments"] == ANSWER
            assert (await client.get(f"/runs/{run_id}/trajectories")).json()["items"] == []
            await _damage_rollouts(database_url)
            assert await finished() == {"total": 1, "items": []}
        finally:
            others.set()
        await run_with(client, run_id, "completed")
        assert await finished() == {"total": 0, "items": []}
        saved = (await client.get(f"/trajectories/{rollout['id']}")).raise_for_status().json()
        assert saved["messages"] == rollout["messages"]


async def test_rewards_are_counted_in_bins_that_all_iterations_share(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).raise_for_status().json()["run_id"]
        run = await run_with(client, run_id, "completed")
        histogram = (await client.get(run["links"]["rewards"])).raise_for_status().json()
        counts = [1, *[0] * 22, 1]  # the script gives rewards of 0 and 1
        assert histogram == {
            "low": 0.0,
            "high": 1.0,
            "iterations": [{"iteration": 1, "counts": counts}, {"iteration": 2, "counts": counts}],
        }
        assert (await client.get("/runs/01ARZ3NDEKTSV4RRFFQ69G5FAV/rewards")).status_code == 404
        assert (await client.get("/runs/01ARZ3NDEKTSV4RRFFQ69G5FAV/rollouts")).status_code == 404


async def test_rewards_are_counted_in_one_pass_where_there_are_no_statistics(database_url: str) -> None:
    """Postgres expects one row of a table without statistics, and computes what it expects once for each row."""
    plan = [line for (line,) in await execute(database_url, f"EXPLAIN {COUNTS.text}", run_id="none", bins=BINS)]
    [aggregate] = [index for index, line in enumerate(plan) if "Aggregate" in line and "Group" not in line]
    assert "CTE bounds" in plan[aggregate - 1], plan
