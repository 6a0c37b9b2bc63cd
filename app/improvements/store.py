"""Improvements in the database: all SQL about their rows, and about the figures of what they tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import Candidate, EvaluationJob, Improvement, LedgerEntry, Run, Trajectory
from learnloop_service.app.domain.evaluation_state import TERMINAL as EVALUATION_ENDED
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.improvement_state import LIVE, CandidateState, ImprovementStatus, Rung
from learnloop_service.app.errors import Conflict, existing
from learnloop_service.app.runs.resume_point import HAS_VERDICT, SUCCESS
from learnloop_service.app.schemas.improvements import PriceOut
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.shares import wilson

Job = TypeVar("Job", EvaluationJob, Run)
NO_JOB: Mapping[str, None] = {"job_kind": None, "job_id": None, "job_for": None}
"""Values of an improvement between two jobs."""
SETTLED = EVALUATION_ENDED | {EvaluationStatus.PAUSED}
"""Statuses of an evaluation in which there is something to decide."""


class Taken(Conflict):
    """Another process made the move, or the improvement was changed meanwhile."""

    def __init__(self) -> None:
        super().__init__("The improvement moved on at the same moment; retry.")


@dataclass(frozen=True, slots=True)
class ImprovementRecord:
    """An improvement with its candidates by number."""

    improvement: Improvement
    candidates: Sequence[Candidate]

    @property
    def champion(self) -> Candidate:
        """The best candidate so far."""
        return self.candidates[self.improvement.champion]

    @property
    def accepted(self) -> Mapping[Rung, Candidate]:
        """The agent as it was, and the last accepted candidate of each rung."""
        return {Rung(row.rung): row for row in self.candidates if row.state == CandidateState.ACCEPTED}

    @property
    def trainable(self) -> Candidate:
        """The newest accepted candidate with a model of this service."""
        return [row for row in self.candidates if row.state == CandidateState.ACCEPTED and not row.listed][-1]

    @property
    def test_evaluations(self) -> Sequence[str]:
        """Ids of the evaluations of the test tasks, newest last."""
        return self.improvement.final["evaluation_ids"] if self.improvement.final else []


@dataclass(frozen=True, slots=True)
class ValidationOutcomes:
    """What a candidate did on validation tasks."""

    success: Mapping[str, float]
    """By scenario id."""
    figures: Json
    """Its success with interval, mean tokens of a rollout and median of the seconds, as candidates' rows have them."""
    step: int | None


class ImprovementStore:
    """The improvements in the database. Methods that take an id raise NotFound if there is no such improvement."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, id: str) -> ImprovementRecord:
        """Return an improvement with its candidates, by one statement: what a process reads with two can be of before
        and of after another one's move."""
        with_candidates = (
            select(Improvement, Candidate)
            .join(Candidate, Candidate.improvement_id == Improvement.id)
            .where(Improvement.id == id)
            .order_by(Candidate.number)
        )
        async with self._database() as tx:
            rows = (await tx.execute(with_candidates)).all()
        improvement = existing(rows[0][0] if rows else None, "improvement", id)
        return ImprovementRecord(improvement, [candidate for _, candidate in rows])

    async def listed(
        self, *, project: str | None, before: str | None, limit: int, started_by: str | None = None
    ) -> Sequence[tuple[Improvement, int]]:
        """Return improvements of a project or of all with their numbers of candidates, newest first."""
        count = select(func.count()).where(Candidate.improvement_id == Improvement.id).scalar_subquery()
        only = (Improvement.project, project), (Improvement.started_by, started_by)
        query = newest_first(select(Improvement, count), Improvement.id, before, limit, *only)
        async with self._database() as tx:
            return [(row, candidates) for row, candidates in (await tx.execute(query))]

    async def due(self) -> Sequence[str]:
        """Return the ids of those for which there is something to decide."""
        async with self._database() as tx:
            return (await tx.execute(_DUE)).scalars().all()

    async def change(self, record: ImprovementRecord, **values: Any) -> None:
        """Change the row of an improvement. Raises Taken if it was changed since it was read."""
        async with self._database.begin() as tx:
            await change(tx, record.improvement, **values)

    async def delete(self, id: str) -> None:
        """Delete an improvement that has ended. Its evaluations and runs stay."""
        async with self._database.begin() as tx:
            await tx.delete(existing(await tx.get(Improvement, id), "improvement", id))

    async def add(self, record: ImprovementRecord, **values: Any) -> int:
        """Add a candidate, and return its number. Raises Taken."""
        number = len(record.candidates)
        values = {"state": CandidateState.PROPOSED, "number": number, **values}
        async with self._database.begin() as tx:
            await change(tx, record.improvement)
            tx.add(Candidate(improvement_id=record.improvement.id, **values))
        return number

    async def decide(
        self, record: ImprovementRecord, candidate: Candidate, state: CandidateState, **values: Any
    ) -> None:
        """Save what was decided on a candidate, whose job has ended if it had one. Raises Taken."""
        champion = {"champion": candidate.number} if state is CandidateState.ACCEPTED else {}
        decided_at = None if state is CandidateState.PROPOSED else func.now()
        async with self._database.begin() as tx:
            await change(tx, record.improvement, **champion, **NO_JOB)
            await change_candidate(tx, candidate, state=state, decided_at=decided_at, **values)

    async def job(self, kind: type[Job], id: str) -> Job | None:
        """Return an evaluation or a run; None if it was deleted."""
        async with self._database() as tx:
            return await tx.get(kind, id)

    async def outcomes(self, candidate: Candidate) -> ValidationOutcomes:
        """Return what a candidate did on validation tasks, in its evaluation or in that of its run."""
        by_iteration = await self._outcomes(*validation_rollouts(candidate))
        return by_iteration.get(candidate.iteration, _NOTHING)

    async def of_run(self, run_id: str) -> Mapping[int | None, ValidationOutcomes]:
        """Return what the checkpoints of a run did on its validation tasks, by iteration."""
        return await self._outcomes(Trajectory.run_id == run_id, *_OF_RUN)

    async def _outcomes(self, *where: ColumnElement[bool]) -> Mapping[int | None, ValidationOutcomes]:
        row = Trajectory
        usage = func.avg(row.prompt_tokens + row.completion_tokens), func.avg(row.seconds), func.max(row.step)
        by_scenario = (
            select(row.iteration, row.scenario_id, SUCCESS, *usage)
            .where(*where, HAS_VERDICT)
            .group_by(row.iteration, row.scenario_id)
            .order_by(row.iteration, func.min(row.seq))
        )
        async with self._database() as tx:
            rows = (await tx.execute(by_scenario)).all()
        return {iteration: _outcomes([*of_it]) for iteration, of_it in groupby(rows, lambda saved: saved.iteration)}

    async def used(self, record: ImprovementRecord) -> Mapping[str, PriceOut]:
        """Return what the evaluations and runs of an improvement used, by their ids."""
        ids = [
            *((record.improvement.pilot or {}).get("evaluation_id"), *record.test_evaluations),
            *(id for row in record.candidates for id in (row.screening_id, row.gate_id)),
        ]
        tokens = (
            select(
                Trajectory.evaluation_id, func.sum(Trajectory.prompt_tokens + Trajectory.completion_tokens).label("sum")
            )
            .where(Trajectory.evaluation_id.in_(ids))
            .group_by(Trajectory.evaluation_id)
            .subquery()
        )
        jobs = (
            select(EvaluationJob, func.coalesce(tokens.c.sum, 0))
            .outerjoin(tokens, tokens.c.evaluation_id == EvaluationJob.id)
            .where(EvaluationJob.id.in_(ids))
        )
        ledger = (
            select(
                LedgerEntry.run_id,
                func.sum(LedgerEntry.seconds) / 60,
                func.sum(LedgerEntry.prompt_tokens + LedgerEntry.completion_tokens),
                func.sum(LedgerEntry.usd),
            )
            .where(LedgerEntry.run_id.in_([row.run_id for row in record.candidates]))
            .group_by(LedgerEntry.run_id)
        )
        async with self._database() as tx:
            used = {job.id: _used_by(job, int(count)) for job, count in (await tx.execute(jobs))}
            for run_id, minutes, count, usd in await tx.execute(ledger):
                used[run_id] = PriceOut(minutes=float(minutes), tokens=int(count), usd=usd)
        return used


def validation_rollouts(candidate: Candidate) -> Sequence[ColumnElement[bool]]:
    """Return the conditions that a measured candidate's rollouts of validation tasks meet."""
    if candidate.run_id is not None:
        return Trajectory.run_id == candidate.run_id, Trajectory.iteration == candidate.iteration, *_OF_RUN
    model = "1" if candidate.number else "0"
    return Trajectory.evaluation_id == candidate.gate_id, func.split_part(Trajectory.slot, "/", 1) == model


async def change(tx: AsyncSession, improvement: Improvement, **values: Any) -> None:
    """Change an improvement's row in the caller's transaction. Raises Taken if it was changed since it was read."""
    changed = (
        update(Improvement)
        .where(Improvement.id == improvement.id, Improvement.version == improvement.version)
        .values(version=Improvement.version + 1, **values)
    )
    if (await tx.execute(changed)).rowcount != 1:  # type: ignore[attr-defined]
        raise Taken()


async def change_candidate(tx: AsyncSession, candidate: Candidate, **values: Any) -> None:
    """Change the row of a candidate in the caller's transaction, which also changes its improvement's."""
    of_candidate = Candidate.improvement_id == candidate.improvement_id, Candidate.number == candidate.number
    await tx.execute(update(Candidate).where(*of_candidate).values(**values))


def _outcomes(rows: Sequence[Any]) -> ValidationOutcomes:
    _, scenarios, success, tokens, seconds, steps = zip(*rows, strict=True)
    mean = float(fmean(success))
    low, high = wilson(mean, len(rows))
    usage: dict[str, Json] = {"tokens": float(fmean(tokens)), "seconds": float(median(seconds)), "usd": None}
    figures = {"success": {"mean": mean, "low": low, "high": high}} | usage
    return ValidationOutcomes(dict(zip(scenarios, map(float, success), strict=True)), figures, steps[-1])


def _used_by(job: EvaluationJob, tokens: int) -> PriceOut:
    judge = job.judge
    # A judge without a model costs 0, which is no price.
    usd = [
        judge.get("usd") if judge.get("requests") else None,
        *(model.get("cost_usd") for model in (job.report or {}).get("models", ())),
    ]
    priced = [price for price in usd if price is not None]
    tokens += int(judge.get("prompt_tokens", 0)) + int(judge.get("completion_tokens", 0))
    return PriceOut(minutes=job.driven_s / 60, tokens=tokens, usd=sum(priced) if priced else None)


_OF_RUN = (
    Trajectory.kind == "evaluation",
    Trajectory.split == "validation",
    Trajectory.mode == "greedy",
)
_NOTHING = ValidationOutcomes({}, {}, None)
_PROPOSED = exists().where(Candidate.improvement_id == Improvement.id, Candidate.state == CandidateState.PROPOSED)
_DUE = (
    select(Improvement.id)
    .where(
        Improvement.status.in_(sorted(LIVE - {ImprovementStatus.PAUSED})),
        or_(
            and_(
                Improvement.job_id.is_(None),
                or_(Improvement.waits_until.is_(None), Improvement.waits_until <= func.now(), _PROPOSED),
            ),
            Improvement.job_kind == "run",
            and_(
                Improvement.job_kind == "evaluation",
                or_(
                    exists().where(EvaluationJob.id == Improvement.job_id, EvaluationJob.status.in_(sorted(SETTLED))),
                    ~exists().where(EvaluationJob.id == Improvement.job_id),
                ),
            ),
        ),
    )
    .order_by(Improvement.id)
)
"""Selects those with something to decide. A run in progress is looked at each time, because it can reach the target."""
