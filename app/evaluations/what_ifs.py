"""Reads the what-ifs of a rollout, and what they tell of its turns."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from sqlalchemy import select

from app.db.database import Database
from app.db.tables import EvaluationJob, Trajectory
from app.domain.stored_evaluation import Slot, StoredEvaluation
from app.evaluations.what_if_report import is_judged
from training.statistics.turn_values import Sampled


@dataclass(frozen=True, slots=True)
class StateValue:
    """The continuations from the state before a turn."""

    sampled: Sampled
    reward: float | None
    """Mean reward; None without a reward."""


async def turn_values_of(database: Database, trajectory_id: str) -> dict[int, StateValue]:
    """Return the values of the states before the turns of a rollout, from all what-ifs that tell them."""
    successes, rewards = defaultdict[int, list[bool]](list), defaultdict[int, list[float]](list)
    async with database() as tx:
        jobs = await tx.execute(
            select(EvaluationJob.id, EvaluationJob.request).where(EvaluationJob.trajectory_id == trajectory_id)
        )
        turns = {
            job.id: what_if.turns
            for job in jobs
            if (what_if := StoredEvaluation.parse(job.request).what_if) is not None and what_if.counts
        }
        columns = Trajectory.evaluation_id, Trajectory.slot, Trajectory.success, Trajectory.error, Trajectory.reward
        for row in await tx.execute(select(*columns).where(Trajectory.evaluation_id.in_(turns))):
            turn = turns[row.evaluation_id][Slot.parse(row.slot).scenario]
            if is_judged(row):
                successes[turn].append(bool(row.success))
            if row.reward is not None:
                rewards[turn].append(row.reward)
    return {
        turn: StateValue(Sampled(len(found), sum(found)), fmean(rewards[turn]) if rewards[turn] else None)
        for turn, found in sorted(successes.items())
    }
