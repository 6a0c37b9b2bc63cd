"""Evaluations in the database: made, claimed by workers through leases, moved on and deleted. All times are the
database's.

As with runs, each claim raises the row's epoch, the fencing token that every commit of a worker carries (`held`): one
with an older epoch changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.session import Sessions
from app.db.tables import EvaluationEvent, EvaluationJob, Promotion, Trajectory
from app.domain.evaluation_state import RESUMABLE, TERMINAL, EvaluationStatus
from app.domain.event_types import EventType
from app.domain.stored_evaluation import Slot, StoredEvaluation, Trial
from app.errors import Conflict, NotAllowed, NotFound
from app.evaluations.publications import NEW
from app.evaluations.sequential import Decision
from app.events.log import append_to_evaluation
from judges.base import JudgeCall
from training.rollout.histories import transcript

_ENDINGS = {
    EvaluationStatus.COMPLETED: EventType.EVALUATION_COMPLETED,
    EvaluationStatus.FAILED: EventType.EVALUATION_FAILED,
    EvaluationStatus.CANCELLED: EventType.EVALUATION_CANCELLED,
}
MAX_CLAIMS = 5
"""Claims without a single saved rollout, before the evaluation is given up."""
_LIGHT = [
    column
    for column in Trajectory.__table__.columns
    if column.name not in ("messages", "tokens", "tools", "score_explanation", "score_parts", "reward_parts")
]
_UNOWNED: Mapping[str, Any] = {"owner": None, "lease_until": None, "wait_reason": None, "cancel_requested": False}


@dataclass(frozen=True, slots=True)
class EvaluationLease:
    """The right to drive an evaluation."""

    evaluation_id: str
    epoch: int
    worker: str

    def held(self) -> ColumnElement[bool]:
        """True of the row while we hold the lease."""
        return and_(
            EvaluationJob.id == self.evaluation_id,
            EvaluationJob.epoch == self.epoch,
            EvaluationJob.status == EvaluationStatus.RUNNING,
        )


class EvaluationLost(Exception):
    """Another worker has claimed the evaluation, or it has ended."""


class EvaluationStore:
    """Each call is one transaction."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def get(self, id: str) -> EvaluationJob:
        """Raises NotFound."""
        async with self._sessions() as session:
            found = await session.get(EvaluationJob, id)
        if found is None:
            raise NotFound(f"There is no evaluation {id!r}.")
        return found

    async def listed(self, *, before: str | None, limit: int, project: str | None) -> Sequence[EvaluationJob]:
        """The newest first, of one project or of all."""
        query = select(EvaluationJob).order_by(EvaluationJob.id.desc()).limit(limit)
        if before is not None:
            query = query.where(EvaluationJob.id < before)
        if project is not None:
            query = query.where(EvaluationJob.project == project)
        async with self._sessions() as session:
            return (await session.execute(query)).scalars().all()

    async def trajectories(self, id: str, *, after: int, limit: int) -> Sequence[Row[Any]]:
        """Light rows in the order of saving, from the one after `after`."""
        query = select(*_LIGHT).where(Trajectory.evaluation_id == id, Trajectory.seq > after)
        async with self._sessions() as session:
            return (await session.execute(query.order_by(Trajectory.seq).limit(limit))).all()

    async def events(self, id: str, *, after: int, limit: int) -> Sequence[EvaluationEvent]:
        """Its events in order, from the one after `after`."""
        mine = select(EvaluationEvent).where(EvaluationEvent.evaluation_id == id, EvaluationEvent.seq > after)
        async with self._sessions() as session:
            return (await session.execute(mine.order_by(EvaluationEvent.seq).limit(limit))).scalars().all()

    async def cancel(self, id: str, actor: str) -> EvaluationStatus:
        """Cancel it, or ask its worker to. Raises NotFound, NotAllowed."""
        async with self._sessions.begin() as session:
            row = await _locked(session, id)
            if row.status in (EvaluationStatus.QUEUED, EvaluationStatus.PAUSED):
                row.status, row.finished_at = EvaluationStatus.CANCELLED, func.now()
                await append_to_evaluation(session, id, EventType.EVALUATION_CANCELLED, actor)
            elif row.status == EvaluationStatus.RUNNING and not row.cancel_requested:
                row.cancel_requested = True
                await append_to_evaluation(session, id, EventType.EVALUATION_CANCEL_REQUESTED, actor)
            elif row.status in TERMINAL - {EvaluationStatus.CANCELLED}:
                raise NotAllowed(f"Cannot cancel a {row.status} evaluation", _allowed(row.status))
            return EvaluationStatus(row.status)

    async def resume(self, id: str, actor: str, budget: Mapping[str, Any] | None = None) -> EvaluationStatus:
        """Queue one again that was paused or cancelled, or failed; what was saved is kept. `budget` replaces those
        limits of its budget that it names.

        Raises NotFound, NotAllowed, and Conflict where its budget would stop it again.
        """
        async with self._sessions.begin() as session:
            row = await _locked(session, id)
            if row.status not in RESUMABLE:
                raise NotAllowed(f"Cannot resume a {row.status} evaluation", _allowed(row.status))
            data: dict[str, Any] = {"error": row.error} if row.error else {}
            if (changed := _changed_budget(row, budget)) is not None:
                row.request = {**row.request, "budget": changed}
                data["budget"] = changed
            row.status, row.error, row.finished_at, row.claims = EvaluationStatus.QUEUED, None, None, 0
            row.shortage, row.wait_reason = None, None
            judged = and_(Trajectory.evaluation_id == id, Trajectory.score_explanation.is_not(None))
            # Fewer, if what it had done was deleted because of its age.
            row.done = (await session.execute(select(func.count()).where(judged))).scalar_one()
            await append_to_evaluation(session, id, EventType.EVALUATION_RESUMED, actor, data)
            return EvaluationStatus.QUEUED

    async def delete(self, id: str) -> EvaluationJob:
        """Delete one that has ended, with its trajectories. Raises NotFound, NotAllowed."""
        async with self._sessions.begin() as session:
            row = await _locked(session, id)
            if row.status not in TERMINAL:
                raise NotAllowed(f"Cannot delete a {row.status} evaluation", _allowed(row.status))
            await session.execute(delete(EvaluationJob).where(EvaluationJob.id == id))
            session.expunge(row)
            return row

    async def claim(self, worker: str, ttl_s: float, engine: str) -> tuple[EvaluationJob, EvaluationLease] | None:
        """Claim the oldest evaluation that can be driven now by a worker that reaches that engine."""
        lapsed = and_(
            EvaluationJob.status == EvaluationStatus.RUNNING,
            or_(EvaluationJob.lease_until.is_(None), EvaluationJob.lease_until < func.clock_timestamp()),
        )
        oldest = (
            select(EvaluationJob)
            .where(
                or_(EvaluationJob.status == EvaluationStatus.QUEUED, lapsed),
                or_(EvaluationJob.engine.is_(None), EvaluationJob.engine == engine),
            )
            .order_by(EvaluationJob.created_at, EvaluationJob.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        async with self._sessions.begin() as session:
            while (row := (await session.execute(oldest)).scalar_one_or_none()) is not None:
                if row.claims < MAX_CLAIMS:
                    row.status, row.owner, row.epoch, row.claims = (
                        EvaluationStatus.RUNNING,
                        worker,
                        row.epoch + 1,
                        row.claims + 1,
                    )
                    row.lease_until, row.wait_reason = _until(ttl_s), None
                    row.started_at = func.coalesce(EvaluationJob.started_at, func.now())
                    await session.flush()
                    started = {"worker": worker, "epoch": row.epoch}
                    await append_to_evaluation(session, row.id, EventType.EVALUATION_STARTED, worker, started)
                    await session.refresh(row)
                    session.expunge(row)
                    return row, EvaluationLease(row.id, row.epoch, worker)
                await _end(
                    session,
                    row.id,
                    EvaluationJob.id == row.id,
                    EvaluationStatus.FAILED,
                    worker,
                    error=f"given up: {MAX_CLAIMS} workers took it, one after another, and each ended before it saved "
                    "a rollout",
                )
                session.expire_all()
        return None

    async def renew(self, lease: EvaluationLease, ttl_s: float, wait_reason: str | None, driven_s: float = 0.0) -> bool:
        """Keep the lease for that long from now; whether its owner asked to cancel. `driven_s` is how long it was
        driven since the last time. Raises EvaluationLost."""
        renewed = (
            update(EvaluationJob)
            .where(lease.held())
            .values(lease_until=_until(ttl_s), wait_reason=wait_reason, driven_s=EvaluationJob.driven_s + driven_s)
            .returning(EvaluationJob.cancel_requested)
        )
        async with self._sessions.begin() as session:
            cancel = (await session.execute(renewed)).scalar_one_or_none()
        if cancel is None:
            raise EvaluationLost(lease.evaluation_id)
        return cancel

    async def release(self, lease: EvaluationLease) -> None:
        """Let any worker continue immediately. Does nothing if the lease is lost."""
        values = {**_UNOWNED, "cancel_requested": EvaluationJob.cancel_requested}
        async with self._sessions.begin() as session:
            released = await session.execute(
                update(EvaluationJob)
                .where(lease.held())
                .values(status=EvaluationStatus.QUEUED, claims=func.greatest(EvaluationJob.claims - 1, 0), **values)
                .returning(EvaluationJob.id)
            )
            if released.first() is not None:
                await append_to_evaluation(session, lease.evaluation_id, EventType.EVALUATION_RELEASED, lease.worker)

    async def pause(self, lease: EvaluationLease, reason: str, shortage: Mapping[str, Any]) -> None:
        """Pause one whose budget does not cover the next call, until it is resumed. Does nothing if the lease is
        lost."""
        values = {**_UNOWNED, "wait_reason": reason, "shortage": dict(shortage), "status": EvaluationStatus.PAUSED}
        paused = update(EvaluationJob).where(lease.held()).values(**values).returning(EvaluationJob.id)
        async with self._sessions.begin() as session:
            if (await session.execute(paused)).first() is not None:
                data = {"reason": reason, **shortage}
                await append_to_evaluation(
                    session, lease.evaluation_id, EventType.EVALUATION_PAUSED, lease.worker, data
                )

    async def keep_lost(self, lease: EvaluationLease, lost: Mapping[str, Any]) -> None:
        """Save what the work used that was not saved. Does nothing if the lease is lost."""
        async with self._sessions.begin() as session:
            await session.execute(update(EvaluationJob).where(lease.held()).values(lost=dict(lost)))

    async def finish(self, lease: EvaluationLease, status: EvaluationStatus, *, error: str | None = None) -> None:
        """End one without a report. Does nothing if the lease is lost."""
        async with self._sessions.begin() as session:
            await _end(session, lease.evaluation_id, lease.held(), status, lease.worker, error=error)

    async def complete(self, lease: EvaluationLease, report: Mapping[str, Any], *, publish: bool = False) -> None:
        """End it with its report, and promote the challenger of a trial that was won: both or neither; `publish`: it is
        to be published. Does nothing if the lease is lost."""
        async with self._sessions.begin() as session:
            try:
                row = await require_held(session, lease)
            except EvaluationLost:
                return
            trial = StoredEvaluation.parse(row.request).trial
            if trial is not None and report["trial"]["decision"] == Decision.PROMOTE:
                report = await _promoted(session, lease.evaluation_id, trial, report)
            await _end(
                session,
                lease.evaluation_id,
                lease.held(),
                EvaluationStatus.COMPLETED,
                lease.worker,
                report=report,
                published=NEW if publish else None,
            )

    async def expire(self, worker: str) -> None:
        """End the leases of a worker that is known to be dead."""
        async with self._sessions.begin() as session:
            await session.execute(
                update(EvaluationJob)
                .where(EvaluationJob.status == EvaluationStatus.RUNNING, EvaluationJob.owner == worker)
                .values(lease_until=None)
            )

    async def rows(self, id: str) -> Sequence[Row[Any]]:
        """Light rows of all its rollouts, with the explanation of the score, which every judged one has."""
        columns: list[ColumnElement[Any]] = [*_LIGHT, Trajectory.__table__.c.score_explanation]
        query = select(*columns).where(Trajectory.evaluation_id == id)
        async with self._sessions() as session:
            return (await session.execute(query.order_by(Trajectory.seq))).all()

    async def messages(self, id: str, slots: Sequence[Slot]) -> dict[str, list[Any]]:
        """What a judge reads of those rollouts, by their ids."""
        query = select(Trajectory.id, Trajectory.messages, Trajectory.additional_histories).where(
            Trajectory.evaluation_id == id, Trajectory.slot.in_(map(str, slots))
        )
        async with self._sessions() as session:
            return {
                row.id: transcript([row.messages, *(each["messages"] for each in row.additional_histories)])
                for row in (await session.execute(query)).all()
            }

    async def keep_rollout(self, lease: EvaluationLease, row: Mapping[str, Any]) -> None:
        """Save a finished rollout, which is not judged yet. Raises EvaluationLost."""
        async with self._sessions.begin() as session:
            await require_held(session, lease)
            await session.execute(insert(Trajectory).values(**row).on_conflict_do_nothing())
            await session.execute(update(EvaluationJob).where(lease.held()).values(claims=0))

    async def keep_verdicts(
        self, lease: EvaluationLease, verdicts: Sequence[Mapping[str, Any]], calls: Sequence[JudgeCall]
    ) -> None:
        """Save the verdicts on all rollouts of a scenario, by their ids, and what they cost. Raises EvaluationLost."""
        async with self._sessions.begin() as session:
            row = await require_held(session, lease)
            for verdict in verdicts:
                columns = {name: value for name, value in verdict.items() if name != "id"}
                await session.execute(update(Trajectory).where(Trajectory.id == verdict["id"]).values(**columns))
            row.done += len(verdicts)
            row.judge = _with_cost(row.judge, calls)


def _allowed(status: str) -> list[str]:
    of = {"cancel": frozenset(EvaluationStatus) - TERMINAL, "resume": RESUMABLE, "delete": TERMINAL}
    return [verb for verb, states in of.items() if status in states]


def _until(ttl_s: float) -> ColumnElement[Any]:
    return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, ttl_s)


async def _locked(session: AsyncSession, id: str) -> EvaluationJob:
    found = (
        await session.execute(select(EvaluationJob).where(EvaluationJob.id == id).with_for_update())
    ).scalar_one_or_none()
    if found is None:
        raise NotFound(f"There is no evaluation {id!r}.")
    return found


async def require_held(session: AsyncSession, lease: EvaluationLease) -> EvaluationJob:
    """The row, locked: it cannot be claimed before the transaction ends. Raises EvaluationLost."""
    found = (await session.execute(select(EvaluationJob).where(lease.held()).with_for_update())).scalar_one_or_none()
    if found is None:
        raise EvaluationLost(lease.evaluation_id)
    return found


async def _end(
    session: AsyncSession,
    id: str,
    which: ColumnElement[bool],
    status: EvaluationStatus,
    actor: str,
    *,
    error: str | None = None,
    report: Mapping[str, Any] | None = None,
    published: Mapping[str, Any] | None = None,
) -> None:
    ended = {"status": status, "error": error, "report": report, "finished_at": func.now(), **_UNOWNED}
    ended["published"] = published
    made = await session.execute(
        update(EvaluationJob)
        .where(which)
        .values(**ended)
        .returning(EvaluationJob.id)
        .execution_options(synchronize_session=False)
    )
    if made.first() is None:
        return
    data: dict[str, Any] = {"error": error} if error else {}
    if report is not None:
        data = {"models": [_headline(each) for each in report["models"]], "trial": report.get("trial")}
    await append_to_evaluation(session, id, _ENDINGS[status], actor, data)


def _headline(model: Mapping[str, Any]) -> dict[str, Any]:
    """What an event tells of a model's figures."""
    plain = ("label", "kind", "model", "step", "success", "reward")
    return {name: model[name] for name in plain} | {"difference": model["difference"]["success"]}


def _changed_budget(row: EvaluationJob, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The budget of one that is resumed; None: it has none and gets none. Raises Conflict if it would stop again."""
    stored = row.request.get("budget")
    if stored is None and given is None:
        return None
    budget = {**(stored or {}), **(given or {})}
    if row.shortage is not None:
        limit, needs, before = row.shortage["limit"], row.shortage["needs"], row.shortage["max"]
        most = budget.get(limit)
        if most is not None and (most < needs or most <= before):
            raise Conflict(
                f"The evaluation has used up its budget. Resume it with a `budget` whose {limit} is at least "
                f"{needs:.6g} and more than {before:.6g}."
            )
    return budget


async def _promoted(session: AsyncSession, id: str, trial: Trial, report: Mapping[str, Any]) -> dict[str, Any]:
    """Promote the challenger, unless the name was given to another checkpoint meanwhile; the report says so."""
    of_name = select(Promotion).where(Promotion.project == trial.project, Promotion.name == trial.name)
    newest = (await session.execute(of_name.order_by(Promotion.id.desc()).limit(1))).scalar_one_or_none()
    now = newest.id if newest is not None and newest.withdrawn_at is None else None
    if now != trial.incumbent:
        return {**report, "trial": {**report["trial"], "decision": "overtaken"}}
    difference = report["models"][1]["difference"]["success"]
    session.add(
        Promotion(
            project=trial.project,
            name=trial.name,
            backend=trial.backend,
            model_name=trial.model_name,
            step=trial.step,
            actor=trial.actor,
            evidence={"evaluation_id": id, "champion": trial.champion, "difference": difference, **report["trial"]},
        )
    )
    return dict(report)


def _with_cost(before: Mapping[str, Any], calls: Sequence[JudgeCall]) -> dict[str, Any]:
    """The sums with those calls; an unknown price makes the sum of dollars unknown."""
    sums: dict[str, Any] = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "usd": 0.0, **before}
    for call in calls:
        for name in ("requests", "prompt_tokens", "completion_tokens"):
            sums[name] += getattr(call, name)
        sums["usd"] = None if sums["usd"] is None or call.cost_usd is None else sums["usd"] + call.cost_usd
    return sums
