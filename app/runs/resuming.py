"""Where a run goes on: read from what its finished iterations left."""

from sqlalchemy import select

from app.db import Sessions
from app.models import Evaluation, Reflection, Run
from training.types import Resume


async def resume_of(sessions: Sessions, run_id: str) -> Resume | None:
    """None for a run whose baseline is not saved yet."""
    async with sessions() as session:
        run = await session.get_one(Run, run_id)
        if run.next_iteration == 0:
            return None
        assert run.step is not None
        assert run.best_step is not None
        best = (
            await session.execute(
                select(Evaluation.success, Evaluation.mean_reward)
                .where(
                    Evaluation.run_id == run_id,
                    Evaluation.split == "validation",
                    Evaluation.mode == "sampled",
                    Evaluation.step == run.best_step,
                )
                .order_by(Evaluation.iteration)
                .limit(1)
            )
        ).one_or_none()
        reflection = await session.get(Reflection, (run_id, run.next_iteration - 1))
    return Resume(
        iteration=run.next_iteration,
        step=run.step,
        best_step=run.best_step,
        best_success=best.success if best else -1.0,
        best_reward=best.mean_reward if best else 0.0,
        environment_state=reflection.state if reflection else None,
    )
