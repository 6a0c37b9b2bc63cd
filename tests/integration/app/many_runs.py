"""Rows of many runs, as the table of runs lists them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert
from ulid import ULID

from learnloop_service.app.db.tables import Evaluation, Run
from learnloop_service.training.statistics.difference import difference
from tests.fakes.stored_request import stored_request
from tests.opened_database import opened_database

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SCENARIOS = 24
_SHAPE = {
    "groups_per_iteration": 2,
    "rollouts_per_group": 5,
    "evaluation": {"every": 4, "scenarios": SCENARIOS, "test_scenarios": 64, "samples": 2},
    "budget": None,
}
RISES: dict[str, list[tuple[int, int | None]]] = {
    "steep": [(0, 15), (1, 18), (2, 12)],
    "flat": [(0, 1)],
    "fell": [(0, -6)],
    "early": [(0, None)],
}
"""Runs by name of their settings: the seed, and how many more of the scenarios succeed at the end."""


def _run(name: str, seed: int, number: int) -> dict[str, Any]:
    return {
        "id": str(ULID()),
        "status": "completed",
        "request": stored_request(seed=seed, learning_rate=0.001 * (1 + len(name)), note=name, **_SHAPE)
        | {"model": {"project": "learnloop", "name": f"{name}-{number}"}},
        "environment": "email_search",
        "judge": "reference",
        "backend": "none",
        "model_project": "learnloop",
        "model_name": f"{name}-{number}",
        "base_model": "none",
        "iterations_total": 3,
        "next_iteration": 1 + number % 3,
        "prompt_tokens": 1000 * number,
        "started_at": NOW,
        "finished_at": None if name == "flat" else NOW + timedelta(seconds=number),
    }


def _evaluations(run_id: str, rise: int | None) -> list[dict[str, Any]]:
    before = {str(n): float(n < 6) for n in range(SCENARIOS)}
    figures: dict[str, Any] = {"scenarios": SCENARIOS, "mean_reward": 0.0, "malformed": 0.0, "turns": 2.0}
    place = {"run_id": run_id, "split": "validation", "mode": "sampled"}
    rows = [place | figures | {"iteration": 0, "step": 0, "success": 0.25, "difference": None}]
    if rise is not None:
        after = {str(n): float(n < 6 + rise) for n in range(SCENARIOS)}
        found = difference(before, after)
        assert found is not None
        values = {name: getattr(found, name) for name in found.__slots__}
        late = {"iteration": 2, "step": 2, "success": sum(after.values()) / SCENARIOS, "difference": values}
        rows.append(place | figures | late)
    # A kind that is no headline, and higher than all.
    greedy = {"mode": "greedy", "iteration": 2, "step": 2, "success": 1.0, "difference": None}
    return [*rows, place | figures | greedy]


async def insert_runs(database_url: str) -> list[str]:
    """Insert the runs of RISES, and return their ids."""
    async with opened_database(database_url) as database, database.begin() as tx:
        kinds = [(name, seed, rise) for name, made in RISES.items() for seed, rise in made]
        runs = [_run(name, seed, number) for number, (name, seed, _) in enumerate(kinds)]
        await tx.execute(insert(Run), runs)
        for run, (_, _, rise) in zip(runs, kinds, strict=True):
            await tx.execute(insert(Evaluation), _evaluations(run["id"], rise))
    return [run["id"] for run in runs]
