"""Stores rejudgings: which stored rollouts are judged again, and what the new verdicts are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.dialects.postgresql import insert

from learnloop_service.app.claims.lease import Lease, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, RejudgedRollout, Run, Trajectory
from learnloop_service.app.domain.stored_evaluation import Rejudge
from learnloop_service.app.errors import NotFound
from learnloop_service.app.evaluations.store import count_verdicts
from learnloop_service.judges.base import JudgeCall
from learnloop_service.training.types import RunConfig

_FIGURES = (
    Trajectory.id,
    Trajectory.kind,
    Trajectory.iteration,
    Trajectory.split,
    Trajectory.mode,
    Trajectory.step,
    Trajectory.scenario_id,
    Trajectory.score,
    Trajectory.reward,
    Trajectory.advantage,
    Trajectory.success,
    Trajectory.error,
)


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Rollouts of one scenario that the run judged together, in the order in which they were saved."""

    rows: Sequence[Row[Any]]

    @property
    def ids(self) -> list[str]:
        """Their ids."""
        return [row.id for row in self.rows]


class RejudgingStore:
    """Rejudgings in the database. Each call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def groups(self, rejudge: Rejudge, config: RunConfig) -> list[StoredGroup]:
        """Return the groups of a run's rollouts, with their figures only."""
        query = select(*_FIGURES).where(
            Trajectory.run_id == rejudge.run_id,
            Trajectory.kind.in_(rejudge.kinds),
            Trajectory.iteration.between(rejudge.first, rejudge.last),
        )
        async with self._database() as tx:
            rows = (await tx.execute(query.order_by(Trajectory.seq))).all()
        return _grouped(rows, config)

    async def whole(self, ids: Sequence[str]) -> list[Trajectory]:
        """Return these rollouts with what a judge reads, in that order. Raises NotFound if one was deleted."""
        async with self._database() as tx:
            rows = (await tx.execute(select(Trajectory).where(Trajectory.id.in_(ids)))).scalars().all()
        by_id = {row.id: row for row in rows}
        if missing := [id for id in ids if id not in by_id]:
            raise NotFound(f"Rollout {missing[0]} was deleted before it was judged again.")
        return [by_id[id] for id in ids]

    async def verdicts(self, evaluation_id: str) -> dict[tuple[str, int], Row[Any]]:
        """Return the new verdicts without their explanations, by the rollout's id and the repeat."""
        table = RejudgedRollout
        columns = (table.trajectory_id, table.repeat, table.score, table.reward, table.advantage, table.success)
        async with self._database() as tx:
            rows: Sequence[Any] = (await tx.execute(select(*columns).where(table.evaluation_id == evaluation_id))).all()
        return {(row.trajectory_id, row.repeat): row for row in rows}

    async def whole_verdicts(self, evaluation_id: str, ids: Sequence[str]) -> dict[tuple[str, int], RejudgedRollout]:
        """Return the new verdicts on these rollouts, by the rollout's id and the repeat."""
        query = select(RejudgedRollout).where(
            RejudgedRollout.evaluation_id == evaluation_id, RejudgedRollout.trajectory_id.in_(ids)
        )
        async with self._database() as tx:
            return {(row.trajectory_id, row.repeat): row for row in (await tx.execute(query)).scalars()}

    async def explanations(self, evaluation_id: str, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return why these rollouts had their score, and why they have the new one, by id."""
        query = (
            select(Trajectory.id, Trajectory.score_explanation, RejudgedRollout.score_explanation)
            .join(RejudgedRollout, RejudgedRollout.trajectory_id == Trajectory.id)
            .where(RejudgedRollout.evaluation_id == evaluation_id, RejudgedRollout.repeat == 0, Trajectory.id.in_(ids))
        )
        async with self._database() as tx:
            return {id: (before or "", now) for id, before, now in await tx.execute(query)}

    async def keep(
        self, lease: Lease[EvaluationJob], verdicts: Sequence[Mapping[str, Any]], calls: Sequence[JudgeCall]
    ) -> None:
        """Save the verdicts on one group in one repeat, and their cost. Raises LeaseLost."""
        async with self._database.begin() as tx:
            await require(tx, lease)
            await tx.execute(insert(RejudgedRollout).on_conflict_do_nothing(), list(verdicts))
            await count_verdicts(tx, lease, len(verdicts), calls)

    async def last_iteration(self, run: Run) -> int | None:
        """Return the last iteration of a run whose rollouts are stored; None without any."""
        query = select(func.max(Trajectory.iteration)).where(Trajectory.run_id == run.id)
        async with self._database() as tx:
            return (await tx.execute(query)).scalar_one_or_none()


def _grouped(rows: Sequence[Any], config: RunConfig) -> list[StoredGroup]:
    """Split rows, in the order of saving, as the run judged them: a scenario can come twice in an iteration."""
    groups = []
    for key, members in groupby(rows, key=lambda row: (row.iteration, row.kind, row.split, row.mode, row.step)):
        kind, mode = key[1], key[3]
        size = config.rollouts_per_group if kind == "train" else config.evaluation.samples if mode == "sampled" else 1
        listed = list(members)
        groups += [StoredGroup(listed[start : start + size]) for start in range(0, len(listed), size)]
    return groups
