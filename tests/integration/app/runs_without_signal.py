"""Runs whose rewards do not differ."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.served import served, settings_for

RUN = {
    "iterations": 4,
    "groups_per_iteration": 2,
    "rollouts_per_group": 2,
    "evaluation": {"every": 4, "scenarios": 1, "test_scenarios": 1, "samples": 1},
}
WRONG = call("return_final_answer", answer="no idea", sources=["x"])


@asynccontextmanager
async def service(data_dir: Path, database_url: str, reply: Reply = WRONG) -> AsyncIterator[httpx.AsyncClient]:
    """With a model that always gives that reply."""

    async def answer(request: Mapping[str, Any]) -> Reply:
        return reply

    async with scripted_chat(answer) as model:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, ScriptedBackend(model.url)) as client:  # type: ignore[arg-type]
            yield client


async def report_agrees(client: httpx.AsyncClient, run_id: str, file: Path) -> None:
    """Write the report on a run, and let it verify itself."""
    for arguments in (["report", run_id, "--output", str(file)], ["report", "verify", str(file)]):
        options = [*arguments, "--url", str(client.base_url)]
        invocation = await asyncio.to_thread(CliRunner().invoke, app, options)
        assert invocation.exit_code == 0, invocation.output


async def started(client: httpx.AsyncClient, **more: Any) -> Any:
    response = await client.post("/learn-loop", json=RUN | more)
    assert response.status_code == 202, response.text
    return response.json()
