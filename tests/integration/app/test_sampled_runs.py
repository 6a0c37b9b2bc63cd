"""A run that draws scenarios by difficulty, from its request to its report."""

from pathlib import Path
from typing import Any

import pytest

from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.changed_rows import change
from tests.integration.app.runs_without_signal import RUN, report_agrees, started
from tests.integration.app.served import ended, served, settings_for
from tests.integration.training.scripted_runs import mixed, skilled

SAMPLING = RUN | {"groups_per_iteration": 3, "replace_groups": True, "scenario_sampling": "difficulty"}


def weighted(rollouts: list[Any], figure: str) -> float:
    weights = [1 / rollout["inclusion"] for rollout in rollouts]
    return float(sum(w * rollout[figure] for w, rollout in zip(weights, rollouts, strict=True)) / sum(weights))


async def test_every_figure_of_training_weighs_by_the_inverse_probability(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(skilled(mixed)) as model:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(model.url)) as client:  # type: ignore[arg-type]
            run = await ended(client, (await started(client, **SAMPLING))["run_id"])
            assert run["status"] == "completed"
            assert run["request"]["scenario_sampling"] == "difficulty"
            path = f"/runs/{run['run_id']}"

            async def read(part: str, **params: Any) -> Any:
                return (await client.get(f"{path}/{part}", params=params)).raise_for_status().json()

            rollouts = (await read("trajectories", kind="train", limit=200))["items"]
            drawn = [rollout for rollout in rollouts if rollout["replaces"] is None]
            assert len({rollout["inclusion"] for rollout in drawn}) > 1
            of = {figures["iteration"]: figures for figures in run["iterations"][1:]}
            metrics = await read("metrics", name=["rollouts.turns", "reward_parts.right"])
            series = {
                one["name"]: dict(zip(metrics["iterations"], one["values"], strict=True)) for one in metrics["metrics"]
            }
            for iteration, figures in of.items():
                some = [rollout for rollout in drawn if rollout["iteration"] == iteration]
                assert figures["success"] == pytest.approx(weighted(some, "success"))
                assert figures["rewards"]["mean"] == pytest.approx(weighted(some, "reward"))
                assert series["rollouts.turns"][iteration] == pytest.approx(weighted(some, "turns"))
            histogram = await read("rewards")
            for row in histogram["iterations"]:
                some = [rollout for rollout in drawn if rollout["iteration"] == row["iteration"]]
                share = weighted(
                    [rollout | {"high": rollout["reward"] == histogram["high"]} for rollout in some], "high"
                )
                assert row["counts"][-1] == pytest.approx(share * len(some), abs=1.0)
                assert sum(row["counts"]) == len(some)
            verification = await read("verify")
            assert (verification["ok"], verification["differences"]) == (True, [])
            await report_agrees(client, run["run_id"], data_dir / "run.html")
            await change(database_url, f"UPDATE trajectory SET inclusion = 0.01 WHERE id = '{drawn[0]['id']}'")
            assert not (await read("verify"))["ok"]
