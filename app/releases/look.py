"""A look at a release: one transaction, which closes windows and, while the release is live, counts what is new,
decides, and writes the decision."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.promotion_lock import lock_promotions
from learnloop_service.app.db.tables import EvaluationJob, Release, ReleaseUnit
from learnloop_service.app.domain.evaluation_state import TERMINAL, EvaluationStatus
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.release_rules import ReleaseRules
from learnloop_service.app.domain.release_state import LIVE, ReleaseReason, ReleaseState
from learnloop_service.app.instruments import RELEASE_DECISIONS, RELEASE_OUTCOMES
from learnloop_service.app.releases import counts, moves, words
from learnloop_service.app.releases.decision import LEAST_UNITS, ReleaseFacts, ReleaseVerdict, decide
from learnloop_service.app.releases.evidence import ReleaseEvidence
from learnloop_service.app.releases.outcome_test import REPORTED, SILENT
from learnloop_service.app.releases.outcomes import ClosedWindow, close_windows
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.sequential import Decision as TrialDecision

_FROZEN_S = 5
"""How long a process that is frozen in the middle of a look can keep the release's row."""


async def look(database: Database, release_id: str) -> EventType | None:
    """Look at a release and do what follows. Returns the type of the event, or None if nothing happened.

    Does nothing if another process looks at it at the moment.
    """
    closed: Counter[ClosedWindow] = Counter()
    async with database.begin() as tx:
        await tx.execute(
            select(func.set_config("idle_in_transaction_session_timeout", f"{_FROZEN_S * 1000:.0f}ms", True))
        )
        row = await moves.locked(tx, release_id, skip_locked=True)
        if row is None:
            return None
        row.looked_at = (await tx.execute(select(func.clock_timestamp()))).scalar_one()
        if row.state != ReleaseState.TRIAL:
            closed = await close_windows(tx, row)
        happened: EventType | None
        if row.confirming_id is not None:
            happened = await _confirm(tx, row)
        elif row.state not in LIVE:
            happened = None
        elif not await moves.means(tx, row, row.promotion_id):
            happened = await moves.overtake(tx, row, row.evidence, moves.SYSTEM)
        elif row.state == ReleaseState.TRIAL:
            happened = await _after_trial(tx, row)
        else:
            happened = await _decide(tx, row, row.looked_at)
    for window, number in closed.items():
        RELEASE_OUTCOMES.labels(window.arm, window.reported).inc(number)
    if happened is not None:
        RELEASE_DECISIONS.labels(happened.removeprefix("release.")).inc()
    return happened


async def _after_trial(tx: AsyncSession, row: Release) -> EventType | None:
    """Start the traffic if the trial has ended without refusing the candidate. One that failed takes it back."""
    trial = await tx.get(EvaluationJob, row.evaluation_id) if row.evaluation_id is not None else None
    if trial is not None and trial.status not in TERMINAL:
        return None
    verdict = (trial.report or {}).get("trial") if trial and trial.status == EvaluationStatus.COMPLETED else None
    evidence = {"trial": verdict}
    if verdict is None or verdict["decision"] == TrialDecision.REFUSE:
        return await moves.roll_back(tx, row, ReleaseReason.TRIAL, moves.SYSTEM, evidence)
    return await moves.start_traffic(tx, row, moves.SYSTEM, evidence)


async def _decide(tx: AsyncSession, row: Release, now: datetime) -> EventType | None:
    rules = ReleaseRules.parse(row.rules)
    previous = ReleaseEvidence.none(rules) if row.evidence is None else ReleaseEvidence.parse(row.evidence)
    new = await counts.count_new(tx, row.id, row.looks + 1)
    row.looks += 1 if new else 0
    facts = ReleaseFacts(
        state=ReleaseState(row.state),
        stage=row.stage,
        met=await counts.met(tx, row.id, row.stage, row.looks),
        counts=counts.added(previous.cells, new),
        failures=await counts.failures(tx, row.id),
        days=(now - (row.started_at or now)) / timedelta(days=1),
        outcome=None if new.keys() & {REPORTED, SILENT} else previous.outcome,
    )
    decision = decide(rules, facts)
    evidence = ReleaseEvidence.of(row.looks, facts, decision).json()
    if new or decision.verdict is not ReleaseVerdict.KEEP:
        row.evidence = evidence
    if decision.reason is ReleaseReason.OUTCOME:
        quality = words.effect_found(rules, decision.outcome)
        return await moves.promote(tx, row, decision.reason, moves.SYSTEM, evidence, quality)
    return await _follow(tx, row, decision.verdict, decision.reason, evidence)


async def _confirm(tx: AsyncSession, row: Release) -> EventType | None:
    """End the confirmation of a promotion when the last window of its units is closed. It confirms nothing if they are
    too few, or if the name was given to another checkpoint meanwhile."""
    await lock_promotions(tx, row.project, row.name)
    last = ReleaseUnit.second_outcome if row.unit == "user" else ReleaseUnit.outcome
    waits = exists().where(ReleaseUnit.release_id == row.id, ReleaseUnit.look.is_(None), last.is_(None))
    is_current = await moves.means(tx, row, row.confirming_id)
    if is_current and (await tx.execute(select(waits))).scalar_one():
        return None
    row.confirming_id = None
    effects = await counts.confirmation(tx, row.id)
    if not is_current or effects[0].units < LEAST_UNITS:
        return None
    return await moves.end_confirmation(tx, row, effects)


async def _follow(
    tx: AsyncSession, row: Release, verdict: ReleaseVerdict, reason: ReleaseReason | None, evidence: Mapping[str, Json]
) -> EventType | None:
    """Write what was decided."""
    if verdict is ReleaseVerdict.NEXT_STAGE:
        return await moves.next_stage(tx, row, evidence)
    if reason is None:
        return None
    if verdict is ReleaseVerdict.HOLD:
        return await moves.hold(tx, row, reason, moves.SYSTEM, evidence)
    if verdict is ReleaseVerdict.PROMOTE:
        return await moves.promote(tx, row, reason, moves.SYSTEM, evidence)
    return await moves.roll_back(tx, row, reason, moves.SYSTEM, evidence)
