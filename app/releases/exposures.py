"""Records who met which arm of a release, and what the first answer to each unit in a stage was like."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.release_rules import Guardrail
from learnloop_service.app.errors import DATABASE_DOWN, ServiceError
from learnloop_service.app.instruments import RELEASE_EXPOSURES, UNASSIGNED
from learnloop_service.app.releases.assignment import ENROLLED_PROBABILITY, enrolled, probabilities_after
from learnloop_service.app.releases.split import Exposure
from learnloop_service.environment.json_type import Json

_COST_SCALE = 4.0
"""An answer with this many times the usual tokens has the cost 1, and so has a longer one."""
_OWN_FAULTS = (HTTPStatus.NOT_FOUND, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Statuses below 500 that are not the requester's fault: the checkpoint is gone, or its server is slow or busy."""

# One statement, since it is on the way of every first answer. A unit that an earlier stage enrolled was counted there.
# One that an earlier stage only passed over has another probability of the candidate than a new one: `probabilities`
# has it for each earlier stage, or null. After a later stage's answer nothing is known of an earlier stage's coin.
# The commit waits for the disk only if it is to be `durable`.
_RECORD = text(
    """
    WITH exposed AS (
        INSERT INTO release_unit (release_id, unit, arm, probability, stage)
        SELECT :release_id, :unit, :arm, CAST(:enrolled_probability AS float8), CAST(:stage AS int)
        WHERE CAST(:is_enrolled AS boolean)
        ON CONFLICT DO NOTHING
    )
    INSERT INTO release_observation (release_id, stage, unit, arm, probability, "values")
    SELECT :release_id, CAST(:stage AS int), :unit, :arm, probability, CAST(:values AS jsonb)
    FROM (
        SELECT CASE WHEN max(stage) IS NULL THEN CAST(:share AS float8)
                    WHEN max(stage) < :stage THEN (CAST(:probabilities AS float8[]))[max(stage) + 1] END AS probability
        FROM release_observation WHERE release_id = :release_id AND unit = :unit
    ) AS met,
    (SELECT CASE WHEN NOT CAST(:durable AS boolean) THEN set_config('synchronous_commit', 'off', true) END) AS commit
    WHERE probability IS NOT NULL AND CAST(:values AS jsonb) IS NOT NULL
    ON CONFLICT DO NOTHING
    """
).bindparams(bindparam("values", type_=JSONB(none_as_null=True)))


@dataclass(frozen=True, slots=True)
class AnswerObservation:
    """What an answer was like. None stands for what could not be measured."""

    error: bool = False
    malformed: bool = False
    seconds: float | None = None
    completion_tokens: int | None = None
    asks_back: bool | None = None
    """Whether it had no tool call and ended in a question."""


async def record_in(
    tx: AsyncSession, exposure: Exposure, observed: AnswerObservation | None, *, durable: bool = True
) -> None:
    """Record in the caller's transaction that the unit meets its arm, if it is enrolled, and what its answer was like.

    The first record of an enrolled unit stays. An answer counts if it is the unit's first one in its stage and no
    earlier stage enrolled the unit. `observed` is None before the answer.
    """
    split, unit = exposure.split, exposure.unit
    if unit is None or (observed is None and not exposure.is_enrolled):
        return
    earlier = split.ramp[: split.stage]
    after = probabilities_after(earlier, split.share)
    parameters: dict[str, Any] = {
        "release_id": split.release_id,
        "stage": split.stage,
        "unit": unit,
        "arm": exposure.arm,
        "is_enrolled": exposure.is_enrolled,
        "enrolled_probability": ENROLLED_PROBABILITY,
        "share": split.share,
        "probabilities": [
            None if enrolled(split.salt, unit, share) else probability
            for share, probability in zip(earlier, after, strict=True)
        ],
        "values": None if observed is None else _values(exposure, observed),
        "durable": durable,
    }
    await tx.execute(_RECORD, parameters)


async def record(database: Database, exposure: Exposure, observed: AnswerObservation | None) -> None:
    """Do the same in a transaction of its own, which is the statement alone: a single round trip.

    It does not wait for the disk. If the machine of the database fails within the next second, the unit's next answer
    counts in place of this one: the arm follows from the hash, so nothing that decides is forgotten.
    """
    async with database() as tx:
        await tx.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        await record_in(tx, exposure, observed, durable=False)


@asynccontextmanager
async def failure_recorded(database: Database, exposure: Exposure | None) -> AsyncIterator[None]:
    """Record that the unit's request failed if the block ends with an error that is not the requester's fault, or if it
    is cancelled or closed, because the requester left without an answer."""
    try:
        yield
    except BaseException as error:
        if exposure is not None and not _is_requesters_fault(error):
            with suppress(*DATABASE_DOWN):  # the error itself says more
                await shielded(record(database, exposure, AnswerObservation(error=True)))
        raise


def _is_requesters_fault(error: BaseException) -> bool:
    """Return whether the request was refused."""
    if not isinstance(error, ServiceError):
        return False
    return error.status < HTTPStatus.INTERNAL_SERVER_ERROR and error.status not in _OWN_FAULTS


def count(exposure: Exposure) -> None:
    """Count a request of a name with a live release."""
    RELEASE_EXPOSURES.labels(UNASSIGNED if exposure.unit is None else exposure.arm).inc()


def _values(exposure: Exposure, observed: AnswerObservation) -> dict[str, Json]:
    split = exposure.split
    values: dict[str, Json] = {
        Guardrail.ERROR: float(observed.error),
        Guardrail.MALFORMED: float(observed.malformed),
    }
    if split.p95_s is not None and observed.seconds is not None:
        values[Guardrail.SLOW] = float(observed.seconds > split.p95_s)
    if split.tokens is not None and observed.completion_tokens is not None:
        values[Guardrail.COST] = min(1.0, observed.completion_tokens / (_COST_SCALE * max(split.tokens, 1.0)))
    if observed.asks_back is not None:
        values[Guardrail.ASKS_BACK] = float(observed.asks_back)
    return values
