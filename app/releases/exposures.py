"""Records who met which arm of a release, and what the first answer to each unit in a stage was like."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.database import Database
from app.db.tables import ReleaseUnit
from app.domain.release_rules import Guardrail
from app.errors import ServiceError
from app.instruments import RELEASE_EXPOSURES, UNASSIGNED
from app.releases.assignment import ENROLLED_PROBABILITY, enrolled, probabilities_after
from app.releases.split import Exposure
from environment.json_type import Json

_COST_SCALE = 4.0
"""An answer with this many times the usual tokens has the cost 1, and so has a longer one."""

# A unit that an earlier stage enrolled was counted there. One that an earlier stage only passed over has another
# probability of the candidate than a new one: `probabilities` has it for each earlier stage, or null.
_OBSERVE = text(
    """
    INSERT INTO release_observation (release_id, stage, unit, arm, probability, "values")
    SELECT :release_id, :stage, :unit, :arm, probability, :values
    FROM (
        SELECT CASE WHEN max(stage) IS NULL THEN CAST(:share AS float8)
                    ELSE (CAST(:probabilities AS float8[]))[max(stage) + 1] END AS probability
        FROM release_observation WHERE release_id = :release_id AND unit = :unit AND stage < :stage
    ) AS met
    WHERE probability IS NOT NULL
    ON CONFLICT DO NOTHING
    """
).bindparams(bindparam("values", type_=JSONB))


@dataclass(frozen=True, slots=True)
class Observed:
    """What an answer was like. None stands for what could not be measured."""

    error: bool = False
    malformed: bool = False
    seconds: float | None = None
    completion_tokens: int | None = None


async def expose(tx: AsyncSession, exposure: Exposure) -> None:
    """Record that the unit meets its arm, in the caller's transaction. The first record of an enrolled unit stays."""
    if not exposure.is_enrolled:
        return
    split = exposure.split
    row = {
        "release_id": split.release_id,
        "unit": exposure.unit,
        "arm": exposure.arm,
        "probability": ENROLLED_PROBABILITY,
        "stage": split.stage,
    }
    await tx.execute(insert(ReleaseUnit).values(row).on_conflict_do_nothing())


async def observe(tx: AsyncSession, exposure: Exposure, observed: Observed) -> None:
    """Record what the answer was like, if it is the unit's first one in this stage and no earlier stage enrolled it."""
    split, unit = exposure.split, exposure.unit
    if unit is None:
        return
    earlier = split.ramp[: split.stage]
    after = probabilities_after(earlier, split.share)
    parameters: dict[str, Any] = {
        "release_id": split.release_id,
        "stage": split.stage,
        "unit": unit,
        "arm": exposure.arm,
        "share": split.share,
        "probabilities": [
            None if enrolled(split.salt, unit, share) else probability
            for share, probability in zip(earlier, after, strict=True)
        ],
        "values": _values(exposure, observed),
    }
    await tx.execute(_OBSERVE, parameters)


async def record_exposure(database: Database, exposure: Exposure) -> None:
    """Record that the unit meets its arm, in a transaction of its own."""
    if exposure.is_enrolled:
        async with database.begin() as tx:
            await expose(tx, exposure)


async def record(database: Database, exposure: Exposure, observed: Observed) -> None:
    """Record the exposure and what the answer was like in one transaction."""
    if exposure.unit is None:
        return
    async with database.begin() as tx:
        await expose(tx, exposure)
        await observe(tx, exposure, observed)


@asynccontextmanager
async def failure_recorded(database: Database, exposure: Exposure | None) -> AsyncIterator[None]:
    """Record that the unit's request failed if the block raises a ServiceError that is not the requester's fault: one
    of the service or of the model's server, or a checkpoint that is gone."""
    try:
        yield
    except ServiceError as error:
        failed = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status == HTTPStatus.NOT_FOUND
        if exposure is not None and failed:
            await record(database, exposure, Observed(error=True))
        raise


def count(exposure: Exposure) -> None:
    """Count a request of a name with a live release."""
    RELEASE_EXPOSURES.labels(UNASSIGNED if exposure.unit is None else exposure.arm).inc()


def _values(exposure: Exposure, observed: Observed) -> dict[str, Json]:
    split = exposure.split
    values: dict[str, Json] = {
        Guardrail.ERROR: float(observed.error),
        Guardrail.MALFORMED: float(observed.malformed),
    }
    if split.p95_s is not None and observed.seconds is not None:
        values[Guardrail.SLOW] = float(observed.seconds > split.p95_s)
    if split.tokens is not None and observed.completion_tokens is not None:
        values[Guardrail.COST] = min(1.0, observed.completion_tokens / (_COST_SCALE * max(split.tokens, 1.0)))
    return values
