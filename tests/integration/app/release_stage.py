"""A name with a release, and users that meet it, without a model."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select
from ulid import ULID

from app.db.database import Database
from app.db.tables import Promotion, Release, ReleaseObservation, ReleaseUnit
from app.domain.release_rules import KINDS, OUTCOME, RAMP, ReleaseRules
from app.domain.release_state import Arm, ReleaseState
from app.releases import moves
from app.releases.look import look

GOOD: Mapping[str, float] = dict.fromkeys(KINDS, 0.0)
BAD: Mapping[str, float] = {**GOOD, "malformed": 1.0}
LAST = {"slow": 0.0}


def rules(**changed: Any) -> ReleaseRules:
    """The default rules, changed."""
    usual: dict[str, Any] = {
        "ramp": RAMP,
        "guardrails": {name: kind.tolerance for name, kind in KINDS.items()},
        "outcome": OUTCOME,
        "window_hours": 168,
        "max_days": 60,
        "at_end": "return",
        "skip_trial": True,
    }
    return ReleaseRules(**{**usual, **changed})


async def running_release(database: Database, name: str = "live", **changed: Any) -> str:
    """Promote a checkpoint to `mail/NAME` and start a release of the next one, without a trial."""
    async with database.begin() as tx:
        stable = Promotion(project="mail", name=name, backend="embedded", model_name="agent", step=1, actor="local")
        tx.add(stable)
        await tx.flush()
        chosen = rules(**changed)
        row = Release(
            id=str(ULID()),
            project="mail",
            name=name,
            state=ReleaseState.TRIAL,
            salt=bytes(16),
            unit="user",
            promotion_id=stable.id,
            backend="embedded",
            model_name="agent",
            step=2,
            share=chosen.ramp[0],
            rules=chosen.model_dump(mode="json"),
            baseline={"p95_s": 2.0, "tokens": 400.0, "users": 1400, "days": 14},
            actor="local",
        )
        tx.add(row)
        await tx.flush()
        await moves.start_traffic(tx, row, "local", None)
    return row.id


async def observe(
    database: Database,
    release_id: str,
    arm: Arm,
    values: Sequence[Mapping[str, float]],
    *,
    stage: int | None = None,
    probability: float | None = None,
) -> None:
    """Let new users have answers with those values, one after the other."""
    async with database.begin() as tx:
        row = await tx.get_one(Release, release_id)
        start = (await tx.execute(select(func.count()).where(ReleaseObservation.release_id == release_id))).scalar_one()
        for number, each in enumerate(values, start):
            await tx.execute(
                insert(ReleaseObservation).values(
                    release_id=release_id,
                    stage=row.stage if stage is None else stage,
                    unit=hashlib.sha256(f"user {number}".encode()).hexdigest(),
                    arm=arm,
                    probability=row.share if probability is None else probability,
                    values=dict(each),
                )
            )


async def enroll(
    database: Database, release_id: str, arm: Arm, count: int, *, outcomes: Sequence[float] = (), first: int = 0
) -> None:
    """Enroll units; the first ones have these frozen outcomes."""
    async with database.begin() as tx:
        for number in range(count):
            closed = number < len(outcomes)
            await tx.execute(
                insert(ReleaseUnit).values(
                    release_id=release_id,
                    unit=hashlib.sha256(f"{arm} {first + number}".encode()).hexdigest(),
                    arm=arm,
                    probability=0.5,
                    stage=0,
                    closed_at=func.now() if closed else None,
                    outcome=outcomes[number] if closed else None,
                )
            )


async def release(database: Database, release_id: str) -> Release:
    """The release as it is now."""
    async with database() as tx:
        return await tx.get_one(Release, release_id)


__all__ = ["BAD", "GOOD", "LAST", "enroll", "look", "observe", "release", "rules", "running_release"]
