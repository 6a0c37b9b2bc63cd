"""Scoring a rollout's tokens by other checkpoints of its run, over HTTP; on the real engine where tokens are scored."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint
from tests.browser.real_service import real_service
from tests.fakes.engine_process import EngineProcess
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.scored_runs import RUN
from tests.integration.app.served import run_with, served, settings_for

_ROUNDING = 5e-4
"""Stored log-probabilities have four digits."""


async def _score(client: httpx.AsyncClient, id: str, *checkpoints: int, **more: Any) -> httpx.Response:
    return await client.post(f"/trajectories/{id}/likelihood", json={"checkpoints": checkpoints} | more)


async def _rollouts(client: httpx.AsyncClient, run_id: str, **query: Any) -> list[Any]:
    listed = await client.get(f"/runs/{run_id}/trajectories", params=query)
    return list(listed.raise_for_status().json()["items"])


@pytest.mark.long
async def test_the_checkpoint_that_sampled_a_rollout_scores_it_as_it_did_then(
    data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    with EngineProcess(tmp_path) as engine:
        async with (
            real_service(data_dir, database_url, engine) as url,
            httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client,
        ):
            run_id = (await client.post("/learn-loop", json=RUN)).raise_for_status().json()["run_id"]
            await run_with(client, run_id, "completed")
            rollouts = await _rollouts(client, run_id, kind="evaluation", iteration=0, mode="greedy")
            rollout = next(candidate for candidate in rollouts if candidate["turns"] >= 2)
            stored = (await client.get(f"/trajectories/{rollout['id']}/tokens")).raise_for_status().json()["turns"]
            scored = (await _score(client, rollout["id"], 0, 1)).raise_for_status().json()
            assert [part["texts"] for part in scored["turns"]] == [part["texts"] for part in stored]
            assert [part["message"] for part in scored["turns"]] == [part["message"] for part in stored]
            assert [part["turn"] for part in scored["turns"]] == list(range(1, rollout["turns"] + 1))
            for turn, then in zip(scored["turns"], stored, strict=True):
                before, after = turn["logprobs"]
                assert before == pytest.approx(then["logprobs"], abs=_ROUNDING)
                assert len(after) == len(before)
            changes = [
                abs(new - old)
                for turn in scored["turns"]
                for old, new in zip(*turn["logprobs"], strict=True)
                if new is not None
            ]
            assert max(changes) > _ROUNDING, "training changed nothing"
            one = (await _score(client, rollout["id"], 1, 0, turn=2)).raise_for_status().json()
            assert one["turns"] == [{**scored["turns"][1], "logprobs": scored["turns"][1]["logprobs"][::-1]}]
            third = await _score(client, rollout["id"], 0, 1, turn=99)
            assert (third.status_code, third.json()["errors"][0]["loc"]) == (422, ["body", "turn"])


async def test_what_cannot_be_scored_is_refused_by_name(data_dir: Path, database_url: str, database: Database) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        run_id = (await client.post("/learn-loop", json={"iterations": 2})).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        [rollout, *_] = await _rollouts(client, run_id, kind="evaluation")
        refused = await _score(client, rollout["id"], 0, 7)
        assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, ["body", "checkpoints", 1])
        assert refused.json()["detail"] == f"Run {run_id} has no checkpoint 7."
        unknown = await _score(client, rollout["id"], 0, 1)
        assert unknown.status_code == 409
        assert "token ids of rollout" in unknown.json()["detail"]
        async with database.begin() as tx:
            await tx.execute(update(Checkpoint).where(Checkpoint.step == 1).values(deleted_at=datetime.now(UTC)))
        deleted = await _score(client, rollout["id"], 0, 1)
        assert (deleted.status_code, deleted.json()["detail"]) == (409, f"Checkpoint 1 of run {run_id} was deleted.")
        assert (await _score(client, rollout["id"], 0)).status_code == 422
        assert (await _score(client, "none", 0, 1)).status_code == 404
