"""What a completed run achieved: held-out results before and after, computed from its rows."""

from typing import Any

from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, Iteration, Run

_FIGURES = ("success", "mean_reward", "malformed", "turns")
_SPLITS = ("test", "validation")
"""Splits in order of preference. The first one that was evaluated both before and after is reported."""


async def summarise(database: Database, run_id: str) -> dict[str, Any]:
    """Return `held_out.<mode>.before|after` (with the split and steps compared) and `training_reward.first|last`."""
    async with database() as tx:
        run = await tx.get_one(Run, run_id)
        evaluations = (
            await tx.execute(
                select(Evaluation).where(Evaluation.run_id == run_id).order_by(Evaluation.iteration, Evaluation.step)
            )
        ).scalars()
        rewards = (
            await tx.execute(
                select(Iteration.reward_mean)
                .where(Iteration.run_id == run_id, Iteration.reward_mean.is_not(None))
                .order_by(Iteration.iteration)
            )
        ).scalars()
        return {
            "held_out": _held_out(list(evaluations), run.best_step),
            "training_reward": _ends(list(rewards)),
        }


def _held_out(evaluations: list[Evaluation], best_step: int | None) -> dict[str, Any]:
    by_mode: dict[str, Any] = {}
    for mode in ("sampled", "greedy"):
        for split in _SPLITS:
            rows = [row for row in evaluations if row.mode == mode and row.split == split]
            before = next((row for row in rows if row.iteration == 0), None)
            after = next((row for row in reversed(rows) if row.step == best_step), None)
            if before is not None and after is not None:
                by_mode[mode] = {"split": split, "before": _figures(before), "after": _figures(after)}
                if before.scenarios < after.scenarios and after.difference is not None:
                    by_mode[mode]["after_on_same_scenarios"] = before.success + after.difference["mean"]
                break
    return by_mode


def _figures(row: Evaluation) -> dict[str, Any]:
    return {"step": row.step, "scenarios": row.scenarios} | {name: getattr(row, name) for name in _FIGURES}


def _ends(values: list[float | None]) -> dict[str, float | None]:
    return {"first": values[0], "last": values[-1]} if values else {"first": None, "last": None}
