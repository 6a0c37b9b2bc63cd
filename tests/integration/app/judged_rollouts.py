"""Rollouts with scores, for a judge to be compared with."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory

ANSWERS = ("14 March", "March 14th", "the fourteenth", "in April", None)
"""The judge `reference` finds the first two right; the scripted model the first three."""


async def judged_rollouts(database: Database, run_id: str) -> None:
    """Two scenarios with a rollout for each answer, whose stored score is 1 if there is an answer at all."""
    same = {
        "run_id": run_id,
        "kind": "evaluation",
        "iteration": 0,
        "split": "test",
        "mode": "sampled",
        "model": "learnloop/a",
        "step": 0,
        "messages": [],
        "tools": [],
        "score_parts": {},
        "reward_parts": {},
        "turns": 1,
        "prompt_tokens": 10,
        "completion_tokens": 10,
        "seconds": 0.1,
        "started_at": datetime.now(UTC),
    }
    rows: list[dict[str, Any]] = [
        same
        | {
            "id": f"t{scenario}{number}",
            "scenario_id": f"s{scenario}",
            "scenario": {"task": {"question": f"When is launch {scenario}?"}, "reference": {"answer": "14 March"}},
            "outcome": {"answer": answer},
            "score": float(answer is not None),
        }
        for scenario in range(2)
        for number, answer in enumerate(ANSWERS)
    ]
    async with database.begin() as tx:
        await tx.execute(insert(Trajectory), rows)
