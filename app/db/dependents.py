"""Locks the rows that refer to rows that are about to be deleted, so that deleting them cannot end in a deadlock.

A transaction that updates a row twice checks the row's foreign keys again, which waits for whoever deletes the row that
they name, while the deletion waits for the row that refers to it. A deletion that has locked the referring rows first
waits for no row afterwards.
"""

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import AgentSession, EvaluationJob, Run, Trajectory


async def lock_dependents(tx: AsyncSession, run_id: str) -> None:
    """Lock the forks of a run, sessions over its models, its rejudgings, and the what-ifs of its rollouts."""
    of_run = or_(AgentSession.run_id == run_id, AgentSession.model_run_id == run_id)
    await tx.execute(select(Run.id).where(Run.parent_run_id == run_id).order_by(Run.id).with_for_update())
    await tx.execute(select(AgentSession.id).where(of_run).order_by(AgentSession.id).with_for_update())
    await _lock_evaluations(tx, or_(EvaluationJob.run_id == run_id, _of_rollouts(Trajectory.run_id == run_id)))


async def lock_what_ifs(tx: AsyncSession, rollouts: ColumnElement[bool]) -> None:
    """Lock the what-ifs of these rollouts, given by a condition on trajectories."""
    await _lock_evaluations(tx, _of_rollouts(rollouts))


def _of_rollouts(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return EvaluationJob.trajectory_id.in_(select(Trajectory.id).where(condition))


async def _lock_evaluations(tx: AsyncSession, condition: ColumnElement[bool]) -> None:
    await tx.execute(select(EvaluationJob.id).where(condition).order_by(EvaluationJob.id).with_for_update())
