"""Runs of the sales environment, with the real engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.sales_agent import GRAPH, sales_agent
from tests.fakes.scripted_chat import Script, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.served import run_with, served, settings_for

SALES: dict[str, Any] = {
    "environment": {"name": "sales_email", "config": {"graph": GRAPH}},
    "judge": {"name": "grounding"},
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 4,
    "max_turns": 4,
    "evaluation": {"every": 1, "scenarios": 2, "samples": 2, "test_scenarios": 2},
}
MANY = SALES | {"groups_per_iteration": 5, "rollouts_per_group": 8}
"""Enough rollouts that some are good."""


@asynccontextmanager
async def sales_service(
    data_dir: Path, database_url: str, script: Script = sales_agent
) -> AsyncIterator[httpx.AsyncClient]:
    """The service with the real learn loop and environment; only sampling and training are scripted."""
    async with scripted_chat(script) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings_for(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
            yield client


async def completed(client: httpx.AsyncClient, **body: Any) -> Any:
    """A run of that request, once it is completed."""
    response = await client.post("/learn-loop", json=body)
    assert response.status_code == 202, response.text
    # The first run of a process imports ART, which takes a busy machine long.
    run = await run_with(client, response.json()["run_id"], "completed", "failed")
    assert run["status"] == "completed", run["error"]
    return run
