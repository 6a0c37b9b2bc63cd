"""Stores evaluations: reads, moves and deletes them, and saves what their workers produce under a lease."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, exists, func, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.claims.lease import Lease, LeaseLost, require
from learnloop_service.app.claims.moves import move_held, move_locked
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.dependents import lock_what_ifs
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.promotion_lock import lock_promotions
from learnloop_service.app.db.tables import (
    EvaluationEvent,
    EvaluationJob,
    Promotion,
    RejudgedRollout,
    Release,
    Trajectory,
)
from learnloop_service.app.domain.evaluation_state import RESUMING, TERMINAL, EvaluationStatus
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.release_state import LIVE as LIVE_RELEASE
from learnloop_service.app.domain.run_state import Move
from learnloop_service.app.domain.stored_evaluation import Comparison, Slot, Trial, TrialEvaluation, parse_evaluation
from learnloop_service.app.errors import Conflict, NotAllowed, existing
from learnloop_service.app.evaluations.claims import UNOWNED
from learnloop_service.app.evaluations.publications import NEW
from learnloop_service.app.evaluations.report import models_without_figures
from learnloop_service.app.events.log import append_to_evaluation
from learnloop_service.judges.base import JudgeCall
from learnloop_service.training.rollout.histories import transcript
from learnloop_service.training.statistics.sequential import Decision

_ENDINGS = {
    EvaluationStatus.COMPLETED: (Move.COMPLETE, EventType.EVALUATION_COMPLETED),
    EvaluationStatus.FAILED: (Move.FAIL, EventType.EVALUATION_FAILED),
    EvaluationStatus.CANCELLED: (Move.STOP, EventType.EVALUATION_CANCELLED),
}
_COMPACT_COLUMNS = [
    column
    for column in Trajectory.__table__.columns
    if column.name not in ("messages", "tokens", "tools", "score_explanation", "score_parts", "reward_parts")
]


_NEW_IN_COPIES = (
    *("id", "seq", "evaluation_id", "slot", "copied_from"),
    *("score", "score_explanation", "score_parts", "reward", "reward_parts", "advantage", "success", "why_no_success"),
)
_COPIED = [column for column in Trajectory.__table__.columns if column.name not in _NEW_IN_COPIES]


class EvaluationStore:
    """Evaluations in the database. Each call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, id: str) -> EvaluationJob:
        """Return an evaluation. Raises NotFound."""
        async with self._database() as tx:
            return existing(await tx.get(EvaluationJob, id), "evaluation", id)

    async def listed(
        self,
        *,
        before: str | None,
        limit: int,
        project: str | None = None,
        trajectory_id: str | None = None,
        run_id: str | None = None,
        started_by: str | None = None,
    ) -> Sequence[EvaluationJob]:
        """Return evaluations of one project or of all, newest first: the what-ifs of a trajectory, the rejudgings of a
        run, or without either those that are neither."""
        of_kind = EvaluationJob.trajectory_id == trajectory_id, EvaluationJob.run_id == run_id
        only = (EvaluationJob.project, project), (EvaluationJob.started_by, started_by)
        query = newest_first(select(EvaluationJob).where(*of_kind), EvaluationJob.id, before, limit, *only)
        async with self._database() as tx:
            return (await tx.execute(query)).scalars().all()

    async def trajectories(self, id: str, *, after: int, limit: int) -> Sequence[Row[Any]]:
        """Return trajectories without their bulky columns in the order of saving, from the one after `after`."""
        query = select(*_COMPACT_COLUMNS).where(Trajectory.evaluation_id == id, Trajectory.seq > after)
        async with self._database() as tx:
            return (await tx.execute(query.order_by(Trajectory.seq).limit(limit))).all()

    async def events(self, id: str, *, after: int, limit: int) -> Sequence[EvaluationEvent]:
        """Return the evaluation's events in order, from the one after `after`."""
        of_evaluation = select(EvaluationEvent).where(EvaluationEvent.evaluation_id == id, EvaluationEvent.seq > after)
        async with self._database() as tx:
            return (await tx.execute(of_evaluation.order_by(EvaluationEvent.seq).limit(limit))).scalars().all()

    async def cancel(self, id: str, actor: str) -> EvaluationStatus:
        """Cancel the evaluation, or ask its worker to. Raises NotFound, NotAllowed."""
        async with self._database.begin() as tx:
            row = await _locked(tx, id)
            if row.status in (EvaluationStatus.QUEUED, EvaluationStatus.PAUSED):
                await move_locked(tx, row, Move.CANCEL, finished_at=func.now())
                await append_to_evaluation(tx, id, EventType.EVALUATION_CANCELLED, actor)
            elif row.status == EvaluationStatus.RUNNING and not row.cancel_requested:
                row.cancel_requested = True
                await append_to_evaluation(tx, id, EventType.EVALUATION_CANCEL_REQUESTED, actor)
            elif row.status in TERMINAL - {EvaluationStatus.CANCELLED}:
                raise NotAllowed(f"Cannot cancel a {row.status} evaluation", _allowed(row.status))
            return EvaluationStatus(row.status)

    async def resume(self, id: str, actor: str, budget: Mapping[str, Any] | None = None) -> EvaluationStatus:
        """Queue a paused, cancelled or failed evaluation again. What was saved is kept, except the rollouts of models
        that never answered: they are made again, and judged together with those of the other models.

        `budget` replaces the limits that it names. Raises NotFound, NotAllowed, and Conflict if the budget would stop
        the evaluation again.
        """
        async with self._database.begin() as tx:
            row = await _locked(tx, id)
            if (move := RESUMING.get(row.status)) is None:
                raise NotAllowed(f"Cannot resume a {row.status} evaluation", _allowed(row.status))
            data: dict[str, Any] = {"error": row.error} if row.error else {}
            values: dict[str, Any] = {"error": None, "finished_at": None, "claims": 0, "shortage": None, "report": None}
            if row.report is not None:
                await _forget_unanswered(tx, id, models_without_figures(row.report))
            if (changed := _changed_budget(row, budget)) is not None:
                values["request"] = {**row.request, "budget": changed}
                data["budget"] = changed
            judged = and_(Trajectory.evaluation_id == id, Trajectory.score_explanation.is_not(None))
            again = select(func.count()).where(RejudgedRollout.evaluation_id == id).scalar_subquery()
            # Fewer than before if some of its trajectories were deleted because of their age.
            judged_count = select(func.count()).where(judged).scalar_subquery() + again
            await move_locked(tx, row, move, done=judged_count, wait_reason=None, cancel_requested=False, **values)
            await append_to_evaluation(tx, id, EventType.EVALUATION_RESUMED, actor, data)
            return EvaluationStatus(move.target)

    async def delete(self, id: str) -> EvaluationJob:
        """Delete an evaluation that has ended, with its trajectories. Raises NotFound, NotAllowed."""
        async with self._database.begin() as tx:
            row = await _locked(tx, id)
            if row.status not in TERMINAL:
                raise NotAllowed(f"Cannot delete a {row.status} evaluation", _allowed(row.status))
            await lock_what_ifs(tx, Trajectory.evaluation_id == id)
            await tx.execute(delete(EvaluationJob).where(EvaluationJob.id == id))
            tx.expunge(row)
            return row

    async def heartbeat(self, lease: Lease[EvaluationJob], wait_reason: str | None, driven_s: float) -> bool:
        """Save what a running evaluation waits for, and add `driven_s` to the time it was driven.

        Returns whether its owner has asked to cancel it. Raises LeaseLost.
        """
        values = {"wait_reason": wait_reason, "driven_s": EvaluationJob.driven_s + driven_s}
        save = update(EvaluationJob).where(lease.held()).values(values).returning(EvaluationJob.cancel_requested)
        async with self._database.begin() as tx:
            cancel = (await tx.execute(save)).scalar_one_or_none()
        if cancel is None:
            raise LeaseLost(lease)
        return cancel

    async def suspend(
        self, lease: Lease[EvaluationJob], reason: str, shortage: Mapping[str, Any] | None = None
    ) -> None:
        """Pause a running evaluation whose work has stopped, until it is resumed. Does nothing if the lease is lost.

        `shortage` describes the budget that stopped it.
        """
        values = {**UNOWNED, "cancel_requested": False, "wait_reason": reason, "shortage": shortage}
        async with self._database.begin() as tx:
            if await move_held(tx, lease, Move.SUSPEND, **values):
                data = {"reason": reason, **(shortage or {})}
                await append_to_evaluation(tx, lease.id, EventType.EVALUATION_PAUSED, lease.actor, data)

    async def keep_lost(self, lease: Lease[EvaluationJob], lost: Mapping[str, Any]) -> None:
        """Save the usage of work that was not saved. Does nothing if the lease is lost."""
        async with self._database.begin() as tx:
            await tx.execute(update(EvaluationJob).where(lease.held()).values(lost=dict(lost)))

    async def finish(
        self,
        lease: Lease[EvaluationJob],
        status: EvaluationStatus,
        *,
        error: str | None = None,
        report: Mapping[str, Any] | None = None,
        publish: bool = False,
    ) -> None:
        """End a running evaluation with a final status. Does nothing if the lease is lost.

        If it is a completed trial that was won, its challenger is promoted in the same transaction. One that failed
        has a report if some of its models have figures. `publish` says that comparisons are to be published.
        """
        move, event = _ENDINGS[status]
        async with self._database.begin() as tx:
            try:
                await require(tx, lease)
            except LeaseLost:
                return
            published = None
            if report is not None and status is EvaluationStatus.COMPLETED:
                evaluation = parse_evaluation((await tx.get_one(EvaluationJob, lease.id)).request)
                if isinstance(evaluation, TrialEvaluation):
                    report = await _promote_if_won(tx, lease.id, evaluation.trial, report)
                if publish and isinstance(evaluation, Comparison):
                    published = NEW
            values = {"error": error, "report": report, "finished_at": func.now(), "cancel_requested": False, **UNOWNED}
            await move_held(tx, lease, move, published=published, **values)
            data = ({"error": error} if error else {}) | (_headlines(report) if report else {})
            await append_to_evaluation(tx, lease.id, event, lease.actor, data)

    async def rows(self, id: str) -> dict[Slot, Any]:
        """Return all rollouts without bulky columns, except the score's explanation, which every judged one has."""
        columns: list[ColumnElement[Any]] = [*_COMPACT_COLUMNS, Trajectory.__table__.c.score_explanation]
        query = select(*columns).where(Trajectory.evaluation_id == id)
        async with self._database() as tx:
            return {Slot.parse(row.slot): row for row in await tx.execute(query.order_by(Trajectory.seq))}

    async def messages(self, id: str, slots: Sequence[Slot]) -> dict[str, list[Any]]:
        """Return what a judge reads of those rollouts, by rollout id."""
        query = select(Trajectory.id, Trajectory.messages, Trajectory.additional_histories).where(
            Trajectory.evaluation_id == id, Trajectory.slot.in_(map(str, slots))
        )
        async with self._database() as tx:
            return {
                row.id: transcript([row.messages, *(history["messages"] for history in row.additional_histories)])
                for row in (await tx.execute(query)).all()
            }

    async def keep_rollout(self, lease: Lease[EvaluationJob], row: Mapping[str, Any]) -> None:
        """Save a finished rollout that is not judged yet. Raises LeaseLost."""
        async with self._database.begin() as tx:
            await require(tx, lease)
            await tx.execute(insert(Trajectory).values(**row).on_conflict_do_nothing())
            await tx.execute(update(EvaluationJob).where(lease.held()).values(claims=0))

    async def keep_copies(self, lease: Lease[EvaluationJob], copies: Mapping[Slot, str]) -> None:
        """Save copies of earlier rollouts, given by their ids, without their verdicts. Raises LeaseLost."""
        async with self._database.begin() as tx:
            await require(tx, lease)
            for slot, id in copies.items():
                new: dict[str, Any] = {
                    "id": literal(str(ULID())),
                    "evaluation_id": literal(lease.id),
                    "slot": literal(str(slot)),
                    "copied_from": func.coalesce(Trajectory.copied_from, Trajectory.id),
                    "score_parts": literal({}, JSONB),
                    "reward_parts": literal({}, JSONB),
                }
                names = [*new, *(column.name for column in _COPIED)]
                rows = select(*new.values(), *_COPIED).where(Trajectory.id == id)
                await tx.execute(insert(Trajectory).from_select(names, rows).on_conflict_do_nothing())

    async def keep_verdicts(
        self, lease: Lease[EvaluationJob], verdicts: Sequence[Mapping[str, Any]], calls: Sequence[JudgeCall]
    ) -> None:
        """Save the verdicts on all rollouts of a scenario, by rollout id, and their cost. Raises LeaseLost."""
        async with self._database.begin() as tx:
            await require(tx, lease)
            for verdict in verdicts:
                columns = {name: value for name, value in verdict.items() if name != "id"}
                await tx.execute(update(Trajectory).where(Trajectory.id == verdict["id"]).values(**columns))
            await count_verdicts(tx, lease, len(verdicts), calls)


def _allowed(status: str) -> list[str]:
    of = {"cancel": frozenset(EvaluationStatus) - TERMINAL, "resume": RESUMING, "delete": TERMINAL}
    return [verb for verb, states in of.items() if status in states]


async def _locked(tx: AsyncSession, id: str) -> EvaluationJob:
    return existing(await tx.get(EvaluationJob, id, with_for_update=True), "evaluation", id)


async def _forget_unanswered(tx: AsyncSession, id: str, models: Iterable[int]) -> None:
    """Delete the rollouts of those models, and the verdicts on all others, because all are judged together."""
    of_evaluation = Trajectory.evaluation_id == id
    for model in models:
        await tx.execute(delete(Trajectory).where(of_evaluation, Trajectory.slot.startswith(f"{model}/")))
    await tx.execute(update(Trajectory).where(of_evaluation).values(score_explanation=None))


def _headlines(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a report that its event contains."""
    decisions = {name: report.get(name) for name in ("trial", "gate")}
    return {"models": [_headline(model) for model in report["models"]], **decisions}


def _headline(model: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("label", "kind", "model", "step", "success", "reward")
    return {name: model[name] for name in plain} | {"difference": model["difference"]["success"]}


def _changed_budget(row: EvaluationJob, limits: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a resumed evaluation's budget; None if it has none. Raises Conflict if the budget would stop it again."""
    stored = row.request.get("budget")
    if stored is None and limits is None:
        return None
    budget = {**(stored or {}), **(limits or {})}
    if row.shortage is not None and "budget" not in row.shortage:
        limit, needs, before = row.shortage["limit"], row.shortage["needs"], row.shortage["max"]
        most = budget.get(limit)
        if most is not None and (most < needs or most <= before):
            raise Conflict(
                f"The evaluation has used up its budget. Resume it with a `budget` whose {limit} is at least "
                f"{needs:.6g} and more than {before:.6g}."
            )
    return budget


async def _promote_if_won(tx: AsyncSession, id: str, trial: Trial, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Promote a won trial's challenger, unless the name has been given to another checkpoint meanwhile or has a live
    release.

    Returns the report, in which the decision is then `overtaken`.
    """
    if trial.release_id is not None or report["trial"]["decision"] != Decision.PROMOTE:
        return report
    await lock_promotions(tx, trial.project, trial.name)
    live = exists().where(
        Release.project == trial.project, Release.name == trial.name, Release.state.in_(sorted(LIVE_RELEASE))
    )
    has_release = (await tx.execute(select(live))).scalar_one()
    of_name = select(Promotion).where(Promotion.project == trial.project, Promotion.name == trial.name)
    newest = (await tx.execute(of_name.order_by(Promotion.id.desc()).limit(1))).scalar_one_or_none()
    now = newest.id if newest is not None and newest.withdrawn_at is None else None
    if has_release or now != trial.incumbent:
        return {**report, "trial": {**report["trial"], "decision": "overtaken"}}
    difference = report["models"][1]["difference"]["success"]
    tx.add(
        Promotion(
            project=trial.project,
            name=trial.name,
            backend=trial.backend,
            model_name=trial.model_name,
            step=trial.step,
            prompt=trial.prompt,
            actor=trial.actor,
            evidence={"evaluation_id": id, "champion": trial.champion, "difference": difference, **report["trial"]},
            explore=Promotion.explore_of(trial.project, trial.name),
        )
    )
    return report


async def count_verdicts(
    tx: AsyncSession, lease: Lease[EvaluationJob], verdicts: int, calls: Sequence[JudgeCall]
) -> None:
    """Add saved verdicts and their cost to the sums. An unknown price makes the sum of dollars unknown."""
    row = await tx.get_one(EvaluationJob, lease.id)
    row.done, row.claims = row.done + verdicts, 0
    sums: dict[str, Any] = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "usd": 0.0, **row.judge}
    for call in calls:
        for name in ("requests", "prompt_tokens", "completion_tokens"):
            sums[name] += getattr(call, name)
        sums["usd"] = None if sums["usd"] is None or call.cost_usd is None else sums["usd"] + call.cost_usd
    row.judge = sums
