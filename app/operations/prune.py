"""Deletes data that is older than the settings allow: details of ended runs and evaluations, but never their figures.

The age of these details counts from the end of their run or evaluation, that of other data from its creation, both by
the database's clock. Each run or evaluation is one transaction, and so is each batch of other rows, so that several
services can prune at the same time.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement, DateTime, Select, and_, cast, delete, exists, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.dependents import lock_what_ifs
from learnloop_service.app.db.tables import (
    AgentSession,
    Base,
    DatasetVersion,
    Document,
    EvaluationEvent,
    EvaluationJob,
    Event,
    Feedback,
    JudgeCall,
    JudgeVerdict,
    LedgerEntry,
    Release,
    ReleaseUnit,
    RolloutRecord,
    Run,
    Trajectory,
    UserScenario,
    WebhookDelivery,
)
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.app.domain.evaluation_state import TERMINAL as EVALUATION_ENDED
from learnloop_service.app.domain.run_state import TERMINAL as RUN_ENDED
from learnloop_service.app.feedback.withdrawals import in_force
from learnloop_service.app.settings import Settings

_BATCH = 1_000
"""Number of rows to delete in one transaction."""
_HAS_FEEDBACK = exists().where(
    or_(Feedback.trajectory_id == Trajectory.id, Feedback.against_id == Trajectory.id), in_force()
)
_HAS_OPINIONS = exists().where(
    or_(Feedback.session_id == AgentSession.id, Feedback.against_session_id == AgentSession.id), in_force()
)


def _in_open_window(of: type[Trajectory] | type[AgentSession]) -> ColumnElement[bool]:
    """Return the condition for rows on which feedback still counts, because the window of their unit is open."""
    units = select(ReleaseUnit.release_id).join(Release, Release.id == ReleaseUnit.release_id)
    return units.where(
        ReleaseUnit.release_id == of.release_id,
        ReleaseUnit.unit.in_((of.user_hash, of.id)),
        ReleaseUnit.look.is_(None),
        Release.needs_arms(),
    ).exists()


log = structlog.get_logger(__name__)


_Delete = Callable[[AsyncSession, Any], Awaitable[None]]


async def prune(database: Database, settings: Settings) -> None:
    """Delete everything that is too old now."""
    by_owner: Sequence[tuple[type[Run] | type[EvaluationJob], Collection[str], str, int | None, _Delete]] = (
        (Run, RUN_ENDED, "trajectories", settings.keep_trajectories_days, _trajectories),
        (Run, RUN_ENDED, "rollouts", settings.keep_rollouts_days or settings.keep_trajectories_days, _rollouts),
        (Run, RUN_ENDED, "events", settings.keep_events_days, _events),
        (Run, RUN_ENDED, "ledger", settings.keep_ledger_days, _merge_ledger),
        (EvaluationJob, EVALUATION_ENDED, "trajectories", settings.keep_trajectories_days, _of_evaluation),
        (EvaluationJob, EVALUATION_ENDED, "events", settings.keep_events_days, _evaluation_events),
    )
    for table, ended, kind, days, delete_from in by_owner:
        if days is not None:
            await _prune_ended(database, table, ended, kind, timedelta(days=days), delete_from)
    questions = and_(Trajectory.kind == "ask", ~_HAS_FEEDBACK, ~_in_open_window(Trajectory))
    over = and_(
        AgentSession.state != AgentSessionState.OPEN,
        AgentSession.run_id.is_(None),
        ~_HAS_OPINIONS,
        ~_in_open_window(AgentSession),
    )
    settled = WebhookDelivery.state != DeliveryState.PENDING
    for days, owned, key, made_at, which in (
        (settings.keep_trajectories_days, Trajectory, Trajectory.id, Trajectory.started_at, questions),
        (settings.keep_trajectories_days, AgentSession, AgentSession.id, AgentSession.opened_at, over),
        (settings.keep_deliveries_days, WebhookDelivery, WebhookDelivery.id, WebhookDelivery.created_at, settled),
        (settings.keep_verdicts_days, JudgeVerdict, JudgeVerdict.key, JudgeVerdict.created_at, None),
    ):
        if days is not None:
            old = made_at < func.now() - timedelta(days=days)
            await _in_batches(database, owned, key, old if which is None else and_(old, which))
    if settings.keep_trajectories_days is not None:
        await _scenarios_of_users(database, timedelta(days=settings.keep_trajectories_days))


async def _prune_ended(
    database: Database,
    table: type[Run] | type[EvaluationJob],
    ended: Collection[str],
    kind: str,
    age: timedelta,
    delete_from: _Delete,
) -> None:
    """Delete details of every run or evaluation that ended longer than `age` ago, once for each time that it ended."""
    pruned_at = cast(table.pruned[kind].astext, DateTime(timezone=True))
    due: Select[Any] = (
        select(table)
        .where(
            table.status.in_(ended),
            table.finished_at < func.now() - age,
            or_(pruned_at.is_(None), pruned_at < table.finished_at),
        )
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    while True:
        async with database.begin() as tx:
            owner: Run | EvaluationJob | None = (await tx.execute(due)).scalar_one_or_none()
            if owner is None:
                return
            await delete_from(tx, owner)
            now = (await tx.execute(select(func.now()))).scalar_one()
            owner.pruned = {**owner.pruned, kind: now.isoformat()}
            log.info("pruned", of=table.__tablename__, id=owner.id, deleted=kind)


async def _trajectories(tx: AsyncSession, run: Run) -> None:
    """Delete all trajectories except those that the run's pages show and those with feedback."""
    of_run = Trajectory.run_id == run.id
    await lock_what_ifs(tx, of_run)
    await tx.execute(delete(Trajectory).where(of_run, Trajectory.kind != "showcase", ~_HAS_FEEDBACK))
    await tx.execute(delete(JudgeCall).where(JudgeCall.run_id == run.id))
    await tx.execute(delete(AgentSession).where(AgentSession.run_id == run.id))


async def _rollouts(tx: AsyncSession, run: Run) -> None:
    await tx.execute(delete(RolloutRecord).where(RolloutRecord.run_id == run.id))


async def _of_evaluation(tx: AsyncSession, evaluation: EvaluationJob) -> None:
    """Delete trajectories without feedback; the report keeps all figures."""
    of_evaluation = Trajectory.evaluation_id == evaluation.id
    await lock_what_ifs(tx, of_evaluation)
    await tx.execute(delete(Trajectory).where(of_evaluation, ~_HAS_FEEDBACK))


async def _evaluation_events(tx: AsyncSession, evaluation: EvaluationJob) -> None:
    await tx.execute(delete(EvaluationEvent).where(EvaluationEvent.evaluation_id == evaluation.id))


async def _events(tx: AsyncSession, run: Run) -> None:
    await tx.execute(delete(Event).where(Event.run_id == run.id))


async def _merge_ledger(tx: AsyncSession, run: Run) -> None:
    """Merge the ledger's rows of saved iterations into one per phase. The run's totals and budget stay the same.

    Rows of an unfinished iteration are kept, because a retry continues from them.
    """
    saved = and_(LedgerEntry.run_id == run.id, LedgerEntry.iteration < run.next_iteration)
    columns = (LedgerEntry.seconds, LedgerEntry.prompt_tokens, LedgerEntry.completion_tokens, LedgerEntry.usd)
    sums = (
        select(LedgerEntry.phase, LedgerEntry.wasted, *(func.sum(column).label(column.key) for column in columns))
        .where(saved)
        .group_by(LedgerEntry.phase, LedgerEntry.wasted)
        .order_by(LedgerEntry.phase, LedgerEntry.wasted)
    )
    rows = [dict(row) for row in (await tx.execute(sums)).mappings()]
    await tx.execute(delete(LedgerEntry).where(saved))
    if rows:
        last = {"run_id": run.id, "iteration": run.next_iteration - 1}
        await tx.execute(insert(LedgerEntry), [row | last for row in rows])


async def _scenarios_of_users(database: Database, age: timedelta) -> None:
    """Delete sets of scenarios that were made from what users asked, unless a run or evaluation still needs them.

    While rollouts on them are kept, the sets link these rollouts to the user.
    """
    of_users = exists().where(UserScenario.project == Document.project, UserScenario.sha256 == Document.sha256)
    old = and_(of_users, Document.created_at < func.now() - age)
    needed = [
        exists().where(
            or_(table.status.not_in(ended), exists().where(owner == table.id)),
            table.request["environment"]["config"]["scenarios"]["sha256"].astext == Document.sha256,
        )
        for table, ended, owner in (
            (Run, RUN_ENDED, Trajectory.run_id),
            (EvaluationJob, EVALUATION_ENDED, Trajectory.evaluation_id),
        )
    ]
    # What a person imported under a name stays until that person, or its user, deletes it.
    needed.append(exists().where(DatasetVersion.project == Document.project, DatasetVersion.sha256 == Document.sha256))
    async with database.begin() as tx:
        deleted = await tx.execute(
            delete(Document).where(old, *(~condition for condition in needed)).returning(Document.sha256)
        )
        if rows := len(deleted.all()):
            log.info("pruned old rows", table=Document.__tablename__, rows=rows)


async def _in_batches(
    database: Database, table: type[Base], key: InstrumentedAttribute[str], which: ColumnElement[bool]
) -> None:
    batch = select(key).where(which).limit(_BATCH).with_for_update(skip_locked=True)
    while True:
        async with database.begin() as tx:
            deleted = (await tx.execute(delete(table).where(key.in_(batch)).returning(key))).all()
        if deleted:
            log.info("pruned old rows", table=table.__tablename__, rows=len(deleted))
        if len(deleted) < _BATCH:
            return
