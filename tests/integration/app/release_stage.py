"""Releases of promoted names on a real database, and users that meet them, without a model."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, insert, select
from ulid import ULID

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Feedback, Promotion, Release, ReleaseObservation, ReleaseUnit
from learnloop_service.app.domain.release_rules import KINDS, OUTCOME, RAMP, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import Arm, ReleaseState
from learnloop_service.app.releases import moves

AT_ONCE = [name for name in Guardrail if name is not Guardrail.THUMBS_DOWN_1H]
GOOD: Mapping[str, float] = dict.fromkeys(AT_ONCE, 0.0)
MALFORMED: Mapping[str, float] = {**GOOD, Guardrail.MALFORMED: 1.0}
FAILED: Mapping[str, float] = {Guardrail.ERROR: 1.0}


def rules(**changed: Any) -> ReleaseRules:
    """Rules that watch what is known at once, changed."""
    usual: dict[str, Any] = {
        "ramp": RAMP,
        "guardrails": {name: KINDS[name].tolerance for name in AT_ONCE},
        "outcome": OUTCOME,
        "window_hours": 168,
        "max_days": 60,
        "at_end": "return",
        "skip_trial": True,
    }
    return ReleaseRules(**{**usual, **changed})


async def promoted(database: Database, step: int, name: str = "live") -> int:
    """Promote a checkpoint of `mail/agent` to `mail/NAME`, as a person does."""
    row = Promotion(project="mail", name=name, backend="embedded", model_name="agent", step=step, actor="local")
    async with database.begin() as tx:
        tx.add(row)
        await tx.flush()
        return row.id


async def running_release(database: Database, name: str = "live", **changed: Any) -> str:
    """Start a release of checkpoint 2 against 1, without a trial."""
    chosen = rules(**changed)
    row = Release(
        id=str(ULID()),
        project="mail",
        name=name,
        state=ReleaseState.TRIAL,
        salt=bytes(16),
        unit="user",
        promotion_id=await promoted(database, 1, name),
        backend="embedded",
        model_name="agent",
        step=2,
        share=chosen.ramp[0],
        rules=chosen.model_dump(mode="json"),
        baseline={"p95_s": 2.0, "tokens": 400.0, "users": 1400, "days": 14},
        actor="local",
    )
    async with database.begin() as tx:
        tx.add(row)
        await tx.flush()
        await moves.start_traffic(tx, row, "local", None)
    return row.id


async def observe(
    database: Database, release_id: str, arm: Arm, values: Mapping[str, float], count: int = 1, **more: Any
) -> None:
    """Let `count` new users of the current stage have answers with those values."""
    await observe_all(database, release_id, [(arm, values, count)], **more)


async def observe_all(
    database: Database, release_id: str, answers: Sequence[tuple[Arm, Mapping[str, float], int]], **more: Any
) -> None:
    """Let users of both arms have answers at once, so that no look comes in between: each arm, its values and how many
    users have them."""
    async with database.begin() as tx:
        row = await tx.get_one(Release, release_id)
        known = select(func.count()).where(ReleaseObservation.release_id == release_id)
        first = (await tx.execute(known)).scalar_one()
        new: dict[str, Any] = {"release_id": release_id, "stage": row.stage, "probability": row.share, **more}
        each = [{**new, "arm": arm, "values": dict(values)} for arm, values, count in answers for _ in range(count)]
        units = [{"unit": hashed(f"user {first + number}")} for number in range(len(each))]
        await tx.execute(insert(ReleaseObservation), [a | b for a, b in zip(each, units, strict=True)])


async def enroll(database: Database, release_id: str, arm: Arm, outcomes: Sequence[float | None]) -> None:
    """Enroll a unit for each outcome; None leaves its window open."""
    await enroll_all(database, release_id, {arm: outcomes})


async def enroll_all(database: Database, release_id: str, arms: Mapping[Arm, Sequence[float | None]]) -> None:
    """Enroll units in both arms at once, so that no look comes in between."""
    new: list[dict[str, Any]] = [
        {
            "release_id": release_id,
            "unit": hashed(f"{arm} {number}"),
            "arm": arm,
            "probability": 0.5,
            "stage": 0,
            "closed_at": None if outcome is None else datetime.now(UTC),
            "outcome": outcome,
            "reported": None if outcome is None else True,
        }
        for arm, outcomes in arms.items()
        for number, outcome in enumerate(outcomes)
    ]
    async with database.begin() as tx:
        await tx.execute(insert(ReleaseUnit), new)


async def say_of(
    database: Database, arm: Arm, values: Sequence[float | None], *, hours_ago: float, name: str = "live"
) -> None:
    """Report `resolved` of the first enrolled units of an arm, received that many hours ago."""
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    rows = [
        {
            "id": str(ULID()),
            "event_id": f"{arm} {number} {hours_ago}",
            "project": "mail",
            "user_hash": hashed(f"{arm} {number}"),
            "asked_as": f"mail/{name}",
            "type": "outcome",
            "confidence": 1.0,
            "outcome_name": "resolved",
            "value": value,
            "source": "api",
            "occurred_at": at,
            "received_at": at,
        }
        for number, value in enumerate(values)
    ]
    async with database.begin() as tx:
        await tx.execute(insert(Feedback), rows)


def hashed(key: str) -> str:
    """Return a unit's hash."""
    return hashlib.sha256(key.encode()).hexdigest()
