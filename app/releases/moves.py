"""The changes of a release's state. Each is made in the caller's transaction, which has locked the release's row, and
writes the row, the event with its deliveries, and on a promotion the new promotion: all of it or nothing. Each returns
the event's type."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.promotion_lock import lock_promotions
from learnloop_service.app.db.tables import AgentSession, Promotion, Release
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.release_rules import ReleaseRules
from learnloop_service.app.domain.release_state import Arm, ReleaseReason, ReleaseState
from learnloop_service.app.events.log import append_to_release
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.two_arms import EffectEstimate

SYSTEM = "system"
"""The actor of what the service decides by itself."""
NOTHING_SHOWN = "Nothing was shown about the quality of the candidate: outcomes did not decide this."


async def locked(tx: AsyncSession, release_id: str, *, skip_locked: bool = False) -> Release | None:
    """Return the release with its row locked; None if there is none, or with `skip_locked` if someone else has it.

    Recording what users meet refers to the row, which this lock permits.
    """
    query = select(Release).where(Release.id == release_id).execution_options(populate_existing=True)
    return (await tx.execute(query.with_for_update(key_share=True, skip_locked=skip_locked))).scalar_one_or_none()


async def start_traffic(tx: AsyncSession, row: Release, actor: str, evidence: Mapping[str, Json] | None) -> EventType:
    """Let users meet the candidate, with the first stage's share. `evidence` is that of the trial, if there was one."""
    now = func.clock_timestamp()
    changed = {"state": ReleaseState.RUNNING, "started_at": now, "stage_since": now}
    return await _move(tx, row, EventType.RELEASE_STARTED, actor, {"evidence": evidence}, **changed)


async def next_stage(tx: AsyncSession, row: Release, evidence: Mapping[str, Json]) -> EventType:
    """Raise the share to that of the next stage."""
    stage = row.stage + 1
    changed = {"stage": stage, "share": ReleaseRules.parse(row.rules).ramp[stage]}
    data = {"before": {"stage": row.stage, "share": row.share}, "evidence": evidence}
    return await _move(
        tx, row, EventType.RELEASE_STAGE_CHANGED, SYSTEM, data, stage_since=func.clock_timestamp(), **changed
    )


async def hold(
    tx: AsyncSession, row: Release, reason: ReleaseReason, actor: str, evidence: Mapping[str, Json] | None
) -> EventType:
    """Keep the share until somebody resumes the release."""
    return await _move(
        tx, row, EventType.RELEASE_HELD, actor, {"evidence": evidence}, state=ReleaseState.HELD, reason=reason
    )


async def resume(tx: AsyncSession, row: Release, actor: str) -> EventType:
    """Resume a held release."""
    return await _move(tx, row, EventType.RELEASE_RESUMED, actor, {}, state=ReleaseState.RUNNING, reason=None)


async def roll_back(
    tx: AsyncSession,
    row: Release,
    reason: ReleaseReason,
    actor: str,
    evidence: Mapping[str, Json] | None,
    *,
    end_sessions: bool = False,
) -> EventType:
    """Take the candidate back. Its open sessions keep it, unless they are ended."""
    data: dict[str, Json] = {"evidence": evidence}
    if end_sessions:
        data["ended_sessions"] = await _end_sessions(tx, row.id)
    return await _end(tx, row, EventType.RELEASE_ROLLED_BACK, ReleaseState.ROLLED_BACK, reason, actor, data)


async def promote(
    tx: AsyncSession,
    row: Release,
    reason: ReleaseReason,
    actor: str,
    evidence: Mapping[str, Json] | None,
    quality: str = NOTHING_SHOWN,
) -> EventType:
    """Give the name to the candidate, unless it no longer means the stable checkpoint. If outcomes are the reason,
    units whose windows are open keep their arms to confirm it."""
    await lock_promotions(tx, row.project, row.name)
    if not await means(tx, row, row.promotion_id):
        return await overtake(tx, row, evidence, actor)
    promotion_id = await _promoted(tx, row, row, actor, {"by": str(reason), "quality": quality})
    if reason is ReleaseReason.OUTCOME:
        row.confirming_id = promotion_id
    data = {"promotion_id": promotion_id, "by": str(reason), "quality": quality, "evidence": evidence}
    return await _end(tx, row, EventType.RELEASE_PROMOTED, ReleaseState.PROMOTED, None, actor, data)


async def end_confirmation(tx: AsyncSession, row: Release, effects: Sequence[EffectEstimate]) -> EventType:
    """Confirm a promotion, or give the name, which the caller has locked, back to the stable checkpoint, because in the
    second windows the candidate is shown to be worse, or worse by the margin."""
    data: dict[str, Json] = {"evidence": {"confirmation": [asdict(effect) for effect in effects]}}
    if effects[-1].high >= -ReleaseRules.parse(row.rules).margin:
        return await _move(tx, row, EventType.RELEASE_CONFIRMED, SYSTEM, data, state=ReleaseState.CONFIRMED)
    reason, stable = ReleaseReason.NOVELTY, await tx.get_one(Promotion, row.promotion_id)
    data["promotion_id"] = await _promoted(tx, row, stable, SYSTEM, {"by": str(reason)})
    return await _end(tx, row, EventType.RELEASE_ROLLED_BACK, ReleaseState.ROLLED_BACK, reason, SYSTEM, data)


async def _promoted(
    tx: AsyncSession, row: Release, checkpoint: Release | Promotion, actor: str, evidence: Mapping[str, Json]
) -> int:
    """Give the name to an arm's checkpoint, and return the promotion's id."""
    promotion = Promotion(
        project=row.project,
        name=row.name,
        backend=checkpoint.backend,
        model_name=checkpoint.model_name,
        step=checkpoint.step,
        prompt=checkpoint.prompt,
        actor=actor,
        evidence={"release_id": row.id, **evidence},
        explore=Promotion.explore_of(row.project, row.name),
    )
    tx.add(promotion)
    await tx.flush()
    return promotion.id


async def overtake(tx: AsyncSession, row: Release, evidence: Mapping[str, Json] | None, actor: str) -> EventType:
    """End a release whose name was given to another checkpoint, or withdrawn. `actor` is who did that, if known."""
    return await _end(tx, row, EventType.RELEASE_ENDED, ReleaseState.OVERTAKEN, None, actor, {"evidence": evidence})


async def means(tx: AsyncSession, row: Release, promotion_id: int | None) -> bool:
    """Return whether that promotion is still what the release's name means."""
    newest = (
        select(Promotion.id, Promotion.withdrawn_at)
        .where(Promotion.project == row.project, Promotion.name == row.name)
        .order_by(Promotion.id.desc())
        .limit(1)
    )
    promotion = (await tx.execute(newest)).one_or_none()
    return promotion is not None and promotion.id == promotion_id and promotion.withdrawn_at is None


async def _end(
    tx: AsyncSession,
    row: Release,
    event: EventType,
    state: ReleaseState,
    reason: ReleaseReason | None,
    actor: str,
    data: Mapping[str, Json],
) -> EventType:
    return await _move(tx, row, event, actor, data, state=state, reason=reason, ended_at=func.clock_timestamp())


async def _move(
    tx: AsyncSession, row: Release, event: EventType, actor: str, data: Mapping[str, Json], **changed: Any
) -> EventType:
    for name, value in changed.items():
        setattr(row, name, value)
    row.version += 1
    await tx.flush()
    await tx.refresh(row)
    stable = await tx.get_one(Promotion, row.promotion_id)
    release: dict[str, Json] = {
        "name": str(ModelName(row.project, row.name)),
        "state": row.state,
        "reason": row.reason,
        "release_version": row.version,
        "stage": row.stage,
        "share": row.share,
        "candidate": str(ModelName(row.project, row.model_name, row.step)),
        "stable": str(ModelName(stable.project, stable.model_name, stable.step)),
        "candidate_prompt": row.prompt and row.prompt.model_dump(),
        "stable_prompt": stable.prompt and stable.prompt.model_dump(),
    }
    await append_to_release(tx, row.id, event, actor, {**release, **data})
    return event


async def _end_sessions(tx: AsyncSession, release_id: str) -> int:
    """Let the open sessions with the candidate expire now, and return how many there are."""
    theirs = (AgentSession.release_id == release_id, AgentSession.arm == Arm.CANDIDATE)
    ending = update(AgentSession).where(*theirs, AgentSession.state == AgentSessionState.OPEN)
    sessions = await tx.execute(ending.values(expires_at=func.clock_timestamp()).returning(AgentSession.id))
    return len(sessions.all())
