"""Shows what the judge of a run asks a language model about a stored rollout."""

import asyncio
from collections.abc import Sequence

from sqlalchemy import Select, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run, Trajectory
from learnloop_service.app.errors import Conflict
from learnloop_service.app.operations.judge_agreement import services_of
from learnloop_service.app.operations.named import rebuilding
from learnloop_service.app.runs.configuration import make_judge
from learnloop_service.app.runs.stored_rollouts import candidate_of, scenario_of
from learnloop_service.app.settings import Settings
from learnloop_service.environment.base import REPORTED_REWARD
from learnloop_service.judges.base import AskingJudge, JudgeQuestion

_LARGEST_GROUP = 256


async def questions_about(database: Database, settings: Settings, row: Trajectory) -> Sequence[JudgeQuestion]:
    """Return what the run's judge first asks a language model about the group of a rollout; nothing if it asks none.

    The questions are made again from the stored rollouts, by the judge as it would be built now. Raises Conflict if the
    rollout belongs to no run, failed, or cannot be judged again.
    """
    if row.run_id is None:
        raise Conflict(f"Rollout {row.id} belongs to no run, so no judge of a run scored it.")
    if row.error is not None or row.outcome.get(REPORTED_REWARD) is not None:
        return ()  # no judge scores it
    async with database() as tx:
        run = await tx.get_one(Run, row.run_id)
        group = (await tx.execute(_group(row))).scalars().all()
    services = await services_of(database, settings, run)
    with rebuilding(f"The judge of run {run.id} cannot be built again"):
        judge = make_judge(run.stored_request.judge, services)
    if not isinstance(judge, AskingJudge):
        return ()
    judged = [rollout for rollout in group if rollout.outcome.get(REPORTED_REWARD) is None]
    candidates = [candidate_of(rollout) for rollout in judged]
    return await asyncio.to_thread(judge.questions, scenario_of(row), candidates)


def _group(row: Trajectory) -> Select[Trajectory]:
    """Select the rollouts that were judged together with this one, including itself."""
    same = ("run_id", "kind", "iteration", "split", "mode", "step", "scenario_id")
    query = select(Trajectory).where(Trajectory.error.is_(None))
    for name in same:
        query = query.where(getattr(Trajectory, name) == getattr(row, name))
    return query.order_by(Trajectory.seq).limit(_LARGEST_GROUP)
