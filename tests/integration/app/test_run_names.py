"""What a run is called: the name in its request, or else what its request sets."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

ANSWERS = {"scenarios": [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(30)]}
NAMED: list[tuple[dict[str, Any], str | None]] = [
    ({"name": "a lower rate", "learning_rate": 1e-12}, "a lower rate"),
    ({"learning_rate": 1e-12, "seed": 4}, "lr 1e-12 · seed 4"),
    ({"seed": 4, "learning_rate": 0.0007, "temperature": 1.0}, "seed 4"),  # the others are the defaults
    ({}, "email_search · usual settings"),
    ({"iterations": 1, "learning_rate": 1e-5}, "lr 1e-5 · 1 iteration"),
    ({"environment": {"name": "answers", "config": ANSWERS}, "iterations": 2}, "answers · 2 iterations"),
    ({"judge": {"name": "reference", "config": {}}, "budget": {"max_minutes": 5}}, "judge reference"),
    (
        {"seed": 4, "groups_per_iteration": 3, "rollouts_per_group": 3, "max_turns": 5, "temperature": 0.5},
        "3 groups · 3 rollouts · 5 turns · seed 4",
    ),
    ({"model": {"name": "clerk"}, "seed": 4}, None),
]


async def _started(client: httpx.AsyncClient, **request: Any) -> Any:
    run_id = (await client.post("/learn-loop", json=request)).raise_for_status().json()["run_id"]
    return (await client.get(f"/runs/{run_id}")).raise_for_status().json()


async def test_a_run_is_called_by_its_name_or_by_what_its_request_sets(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        for request, name in NAMED:
            run = await _started(client, **request)
            assert run["name"] == name, request
            assert "name" not in run["request"], "runs of different names have the same settings"
            [created, *_] = (await client.get(f"/runs/{run['run_id']}/events")).json()["items"]
            assert created["data"]["name"] == name
        listed = (await client.get("/runs", params={"search": "lr 1e-12"})).json()["items"]
        assert [listed_run["name"] for listed_run in listed] == ["lr 1e-12 · seed 4"]


@pytest.mark.parametrize("name", ["", " a", "a\nb", "n" * 101])
async def test_a_name_that_is_no_line_is_refused(data_dir: Path, database_url: str, name: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        reply = await client.post("/learn-loop", json={"name": name})
        assert reply.status_code == 422
        assert reply.json()["errors"][0]["loc"] == ["body", "name"]


async def test_a_list_shows_settings_on_request(data_dir: Path, database_url: str) -> None:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        await _started(client, learning_rate=0.01, budget={"max_minutes": 5})
        [plain] = (await client.get("/runs")).json()["items"]
        assert plain["settings"] is None
        [row] = (await client.get("/runs", params={"settings": True})).json()["items"]
        settings = row["settings"]
        assert (settings["learning_rate"], settings["judge.name"], settings["seed"]) == (0.01, "reference", 0)
        assert settings["budget.max_minutes"] == 5
        assert "budget.max_usd" not in settings, "it is not set"
