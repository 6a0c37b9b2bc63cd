"""Files of the engine that are gone or damaged: what callers are told, and what goes on."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment.email_search.synthetic import address_of
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.model_stage import CALLER, ModelStage, keyed_engine, model_stage


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """One of its own: its files are damaged."""
    with keyed_engine(tmp_path) as process:
        yield process


@pytest.fixture
async def stage(engine: EngineProcess, data_dir: Path, database_url: str) -> AsyncIterator[ModelStage]:
    async with model_stage(engine, data_dir, database_url) as running_stage:
        yield running_stage


def _checkpoints(engine: EngineProcess) -> Path:
    return engine.data_dir / "models" / CALLER / "checkpoints"


async def _post(stage: ModelStage, path: str, body: Any) -> Any:
    headers = {"authorization": f"Bearer {await stage.key()}"}
    return await stage.service.client.post(path, headers=headers, json=body)


async def test_asking_a_checkpoint_whose_files_are_gone_says_so(stage: ModelStage) -> None:
    """It was verified when it was written, and is not in memory."""
    run_id = await stage.run_of()
    shutil.rmtree(_checkpoints(stage.engine))
    inbox = address_of("test", 0, 17)
    body = {"run_id": run_id, "checkpoint": 0, "question": "When is the kickoff?", "inbox_address": inbox}
    reply = await _post(stage, "/ask", body)
    assert (reply.status_code, reply.headers["content-type"]) == (404, "application/problem+json")
    assert reply.json()["detail"].startswith(f"The files of {CALLER}@0 are gone or damaged: ")
    assert "Put back a copy of them" in reply.json()["detail"]
