"""A run keeps the checkpoints that its request asks for, and those that others need."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Promotion
from learnloop_service.training.backends.base import BackendUnavailable, ModelSpec
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

MODEL = {"name": "agent"}


async def _remaining(client: Any, run_id: str) -> list[int]:
    items = (await client.get(f"/runs/{run_id}/checkpoints")).json()["items"]
    return [checkpoint["step"] for checkpoint in items if checkpoint["deleted_at"] is None]


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6]),
        ({"keep_every": 3}, [0, 3, 5, 6]),
        ({"keep_last": 1, "keep_best": 2}, [0, 5, 6]),  # the others were not evaluated
    ],
)
async def test_old_checkpoints_go(data_dir: Path, database_url: str, choice: Any, left: list[int]) -> None:
    backend = ScriptedBackend()
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), backend) as client:
        request = {"iterations": 6, "model": MODEL, "checkpoints": choice}
        run_id = (await client.post("/learn-loop", json=request)).raise_for_status().json()["run_id"]
        await run_with(client, run_id, "completed")
        assert await _remaining(client, run_id) == left
        assert await backend.checkpoints("learnloop", "agent") == set(left)


async def test_what_others_need_stays(data_dir: Path, database_url: str, database: Database) -> None:
    """An earlier run's checkpoints, and a promoted one."""
    backend = ScriptedBackend()
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), backend) as client:
        first = (await client.post("/learn-loop", json={"iterations": 2, "model": MODEL})).json()["run_id"]
        await run_with(client, first, "completed")
        row = {"project": "learnloop", "name": "live", "backend": "embedded", "model_name": "agent", "step": 4}
        async with database.begin() as tx:
            await tx.execute(insert(Promotion), [row | {"actor": "a test"}])
        request = {"iterations": 5, "model": MODEL, "checkpoints": {"keep_last": 1}}
        second = (await client.post("/learn-loop", json=request)).json()["run_id"]
        await run_with(client, second, "completed")
        assert await _remaining(client, first) == [0, 1, 2]
        assert await _remaining(client, second) == [2, 4, 6, 7]
        assert await backend.checkpoints("learnloop", "agent") == {0, 1, 2, 4, 6, 7}


async def test_a_starred_run_keeps_all_that_it_has(data_dir: Path, database_url: str) -> None:
    backend, gate = ScriptedBackend(), threading.Event()
    loop = ScriptedLoop(gates={5: gate})
    async with served(settings_for(data_dir, database_url), loop, backend) as client:
        request = {"iterations": 8, "model": MODEL, "checkpoints": {}}
        run_id = (await client.post("/learn-loop", json=request)).json()["run_id"]
        await asyncio.to_thread(loop.has_entered(5).wait, 60)
        (await client.patch(f"/runs/{run_id}", json={"starred": True})).raise_for_status()
        gate.set()
        await run_with(client, run_id, "completed")
        assert await _remaining(client, run_id) == [0, 3, 4, 5, 6, 7, 8]


async def test_a_promoted_model_outlives_its_run(data_dir: Path, database_url: str, database: Database) -> None:
    backend = ScriptedBackend()
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), backend) as client:
        for name in ("promoted", "forgotten"):
            run_id = (await client.post("/learn-loop", json={"iterations": 1, "model": {"name": name}})).json()[
                "run_id"
            ]
            await run_with(client, run_id, "completed")
            row = {"project": "learnloop", "name": "live", "backend": "embedded", "model_name": "promoted", "step": 1}
            async with database.begin() as tx:
                await tx.execute(insert(Promotion), [row | {"actor": "a test"}])
            assert (await client.delete(f"/runs/{run_id}")).status_code == 200
        assert [model.name for model in backend.policies] == ["promoted"]


async def test_a_backend_that_cannot_delete_ends_no_run(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ScriptedBackend()
    policy: Any = await backend.register(ModelSpec("learnloop", "agent", "learnloop/tiny"))
    whole = policy.delete_checkpoints
    tries = 0

    async def refuses_at_first(keep: set[int]) -> list[int]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BackendUnavailable("as scripted")
        result: list[int] = await whole(keep)
        return result

    monkeypatch.setattr(policy, "delete_checkpoints", refuses_at_first)
    async with served(settings_for(data_dir, database_url), ScriptedLoop(), backend) as client:
        request = {"iterations": 4, "model": MODEL, "checkpoints": {"keep_last": 1}}
        run_id = (await client.post("/learn-loop", json=request)).json()["run_id"]
        await run_with(client, run_id, "completed")
        assert await _remaining(client, run_id) == [3, 4]
    assert tries > 1


async def test_bad_choices(data_dir: Path, database_url: str) -> None:
    bad: tuple[Any, ...] = ({"keep_last": 0}, {"keep_best": 0}, {"keep_every": 0}, {"keep": 1}, [])
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for choice in bad:
            assert (await client.post("/learn-loop", json={"checkpoints": choice})).status_code == 422
