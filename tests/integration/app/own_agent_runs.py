"""Runs whose agent is a user's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.settings import Settings
from tests.fakes.scripted_chat import Reply
from tests.integration.app.served import settings_for

AGENTS = "tests.fakes.own_agents"
TASKS: list[Any] = [{"task": {"question": f"{n}?"}, "reference": {"answer": "yes"}} for n in range(5)]
SMALL: dict[str, Any] = {
    "iterations": 1,
    "groups_per_iteration": 2,
    "rollouts_per_group": 4,
    "seed": 3,  # in both groups some calls have even seeds and some odd ones
    "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
}


def request(runner: Any, **more: Any) -> dict[str, Any]:
    config = {"scenarios": TASKS, "runner": runner}
    return {"environment": {"name": "agent", "config": config}, "judge": {"name": "reported"}, **SMALL, **more}


async def get(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(path)).raise_for_status().json()


async def by_seed(asked: Mapping[str, Any]) -> Reply:
    """Half of the replies are right."""
    return Reply(content="yes" if asked["seed"] % 2 else "no")


def reachable(data_dir: Path, database_url: str, **more: Any) -> Settings:
    """Settings of a service that agents can reach."""
    return settings_for(data_dir, database_url, port=free_port(), allowed_private_hosts="127.0.0.1", **more)
