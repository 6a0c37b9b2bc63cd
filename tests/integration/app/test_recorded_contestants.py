"""Contestants whose rollouts of an earlier evaluation serve again, judged together with new ones."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, update

from learnloop_service.app.db.tables import EvaluationJob, Trajectory
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.stored_evaluation import Comparison, Gate, GateEvaluation, Slot
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.operations.prune import prune
from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_chat import ScriptedChat, scripted_chat
from tests.integration.app.hinted_prompts import HINT, HINTED, right_when_hinted, store
from tests.integration.app.served import settings_for
from tests.integration.app.started_evaluations import StartingService, starting_service

BASE, CANDIDATE = {"model": "learnloop/tiny", "prompt": None, "label": "champion"}, {"prompt": "hinted@1"}
SIZE = {"scenarios": 6, "split": "validation", "seed": 3, "environment": {"name": "email_search"}}


def made(chat: ScriptedChat) -> tuple[int, int]:
    """How many rollouts the champion and the candidate have begun; each has one turn."""
    hinted = [HINT in request["messages"][0]["content"] for request in chat.requests if "messages" in request]
    return hinted.count(False), hinted.count(True)


async def completed(service: StartingService, request: Json, kind: type[Comparison] = Comparison, **fields: Any) -> str:
    id = await service.start(request, kind, **fields)
    job = await service.ended(id)
    assert job.status == EvaluationStatus.COMPLETED, job.error
    return id


async def rows_of(service: StartingService, id: str) -> Mapping[Slot, Any]:
    return await EvaluationStore(service.database).rows(id)


async def figures(service: StartingService, id: str) -> Json:
    return (await service.client.get(f"/evaluations/{id}")).raise_for_status().json()["report"]["models"]


async def test_a_champions_rollouts_serve_again_and_are_judged_with_the_new_ones(
    data_dir: Path, database_url: str
) -> None:
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        await store(service.client, HINTED)
        before = await completed(service, {"models": [BASE], **SIZE})
        assert made(chat) == (6, 0)
        after = await completed(service, {"models": [CANDIDATE, BASE], **SIZE}, recorded={1: before})
        assert made(chat) == (6, 6)
        recorded, rows = await rows_of(service, before), await rows_of(service, after)
        assert len(rows) == 12
        for number in range(6):
            copy, original, new = rows[Slot(1, number, 0)], recorded[Slot(0, number, 0)], rows[Slot(0, number, 0)]
            assert (copy.copied_from, new.copied_from) == (original.id, None)
            for name in ("scenario", "outcome", "turns", "seconds", "started_at"):
                assert getattr(copy, name) == getattr(original, name)
            assert copy.score_explanation is not None
        _, champion = await figures(service, after)
        [alone] = await figures(service, before)
        assert (champion["success"], champion["prompt_tokens"]) == (alone["success"], alone["prompt_tokens"])
        assert champion["difference"]["success"]["mean"] == -1.0

        whole = [
            (await service.client.get(f"/trajectories/{id}")).raise_for_status().json()
            for id in (rows[Slot(1, 0, 0)].id, recorded[Slot(0, 0, 0)].id)
        ]
        assert whole[0]["copied_from"] == whole[1]["id"]
        assert (whole[0]["messages"], whole[0]["tools"]) == (whole[1]["messages"], whole[1]["tools"])

        again = await completed(service, {"models": [BASE], **SIZE}, recorded={0: after})
        copies = await rows_of(service, again)
        assert {row.copied_from for row in copies.values()} == {row.id for row in recorded.values()}, "the first ones"
        (await service.client.delete(f"/evaluations/{before}")).raise_for_status()
        assert len(await rows_of(service, after)) == 12
        failing = await service.client.get("/failures", params={"evaluation": after})
        assert failing.raise_for_status().json()["now"]["tasks"] == 6


async def test_a_gate_copies_no_more_than_it_looks_at(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        await store(service.client, HINTED)
        size = SIZE | {"scenarios": 24}
        before = await completed(service, {"models": [BASE], **size})
        gate = Gate(error=0.05, exact=0.8, look_every=8)
        request = {"models": [BASE, CANDIDATE], **size}
        after = await completed(service, request, GateEvaluation, gate=gate, recorded={0: before})
        alone = await completed(service, request, GateEvaluation, gate=gate)
        jobs = [await EvaluationStore(service.database).get(id) for id in (after, alone)]
        first, second = [(job.report or {})["gate"] for job in jobs]
        assert first == second
        assert (first["decision"], first["tasks"], len(await rows_of(service, after))) == ("better", 16, 32)
        assert made(chat) == (24 + 16, 16 + 16)


async def test_copies_use_none_of_the_budget(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        await store(service.client, HINTED)
        short = SIZE | {"max_turns": 1, "max_completion_tokens": 16, "concurrency": 1}
        before = await completed(service, {"models": [BASE], **short})
        request = {"models": [BASE, CANDIDATE], "budget": {"max_tokens": 1}, **short}
        id = await service.start(request, recorded={0: before})
        assert (await service.ended(id)).status == EvaluationStatus.PAUSED
        assert len(await rows_of(service, id)) == 6, "copies are saved at once"
        events = (await service.client.get(f"/evaluations/{id}/events")).raise_for_status().json()["items"]
        budget = {"max_tokens": int(events[-1]["data"]["needs"]) + 100}
        (await service.client.post(f"/evaluations/{id}/resume", json={"budget": budget})).raise_for_status()
        job = await service.ended(id)
        new = [row for row in (await rows_of(service, id)).values() if row.copied_from is None]
        used = sum(row.prompt_tokens + row.completion_tokens for row in new)
        assert job.status == EvaluationStatus.PAUSED
        assert used > 0
        assert f": {used} are used" in (job.wait_reason or "")


@pytest.mark.parametrize(
    ("change", "more", "copied"),
    [
        ({}, {}, 6),
        ({}, {"scenarios": 8}, 6),
        ({}, {"samples": 2}, 6),
        ({}, {"seed": 4}, 0),
        ({}, {"split": "test"}, 0),
        ({}, {"max_turns": 3}, 0),
        ({}, {"temperature": 0.5}, 0),
        ({}, {"environment": {"name": "email_search", "config": {"reward": "art_e"}}}, 0),
        ({}, {"models": [CANDIDATE]}, 0),
        ({"error": "it took too long"}, {}, 5),
        ({"scenario": {"task": {}, "reference": {}}}, {}, 5),
    ],
)
async def test_rollouts_that_do_not_hold_are_made_again(
    data_dir: Path, database_url: str, change: Json, more: Json, copied: int
) -> None:
    """`change` is what is different in the first recorded rollout."""
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        await store(service.client, HINTED)
        before = await completed(service, {"models": [BASE], **SIZE})
        if change:
            async with service.database.begin() as tx:
                first = (Trajectory.evaluation_id == before, Trajectory.slot == "0/0/0")
                await tx.execute(update(Trajectory).where(*first).values(**change))
        after = await completed(service, {"models": [BASE], **SIZE, **more}, recorded={0: before})
        rows = await rows_of(service, after)
        assert sum(row.copied_from is not None for row in rows.values()) == copied
        assert sum(made(chat)) == 6 + len(rows) - copied


async def test_a_pruned_or_deleted_evaluation_falls_back_to_new_rollouts(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        before = await completed(service, {"models": [BASE], **SIZE})
        async with service.database.begin() as tx:
            long_ago = func.now() - timedelta(days=8)
            await tx.execute(update(EvaluationJob).values(finished_at=long_ago))
        await prune(service.database, settings_for(data_dir, database_url, keep_trajectories_days=7))
        pruned = await completed(service, {"models": [BASE], **SIZE}, recorded={0: before})
        (await service.client.delete(f"/evaluations/{before}")).raise_for_status()
        deleted = await completed(service, {"models": [BASE], **SIZE}, recorded={0: before})
        for id in (pruned, deleted):
            assert {row.copied_from for row in (await rows_of(service, id)).values()} == {None}
        assert made(chat) == (18, 0)


async def test_rollouts_of_another_project_do_not_serve(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(right_when_hinted) as chat, starting_service(data_dir, database_url, chat) as service:
        theirs = await completed(service, {"models": [BASE], **SIZE})
        async with service.database.begin() as tx:
            await tx.execute(update(EvaluationJob).values(project="theirs"))
        ours = await completed(service, {"models": [BASE], **SIZE}, recorded={0: theirs})
        assert {row.copied_from for row in (await rows_of(service, ours)).values()} == {None}
