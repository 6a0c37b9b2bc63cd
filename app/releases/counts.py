"""Counts what users met, by cell. A look counts only what no look has counted before, and marks it with its number, so
that the evidence of any look can be computed again from the rows."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import ReleaseEvent, ReleaseObservation
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.release_rules import Guardrail
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.releases.decision import Failures
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.guardrails import Cell, merged

CellCounts = Mapping[Guardrail, Mapping[Cell, int]]
_NAMES = frozenset(Guardrail)
# Values are rounded to hundredths, so that there are at most 101 cells for each probability and arm. `thumbs_down_1h`
# is the only value that is not known with the answer, and has a mark of its own.
_NEW = text(
    """
    WITH marked AS (
        UPDATE release_observation SET look = :look
        WHERE release_id = :id AND look IS NULL RETURNING probability, arm, "values"
    )
    SELECT each.key, probability, arm, round(each.value::numeric, 2)::float8, count(*)
    FROM marked, jsonb_each_text("values") AS each
    WHERE each.value IS NOT NULL AND probability > 0 AND probability < 1 AND each.key <> 'thumbs_down_1h'
    GROUP BY 1, 2, 3, 4
    """
)
_NEW_LATE = text(
    """
    WITH marked AS (
        UPDATE release_observation SET late_look = :look
        WHERE release_id = :id AND late_look IS NULL AND "values" ? 'thumbs_down_1h'
        RETURNING probability, arm, "values"
    )
    SELECT each.key, probability, arm, round(each.value::numeric, 2)::float8, count(*)
    FROM marked, jsonb_each_text("values") AS each
    WHERE each.value IS NOT NULL AND probability > 0 AND probability < 1 AND each.key = 'thumbs_down_1h'
    GROUP BY 1, 2, 3, 4
    """
)
_COUNTED = text(
    """
    SELECT each.key, probability, arm, round(each.value::numeric, 2)::float8, count(*)
    FROM release_observation, jsonb_each_text("values") AS each
    WHERE each.value IS NOT NULL AND probability > 0 AND probability < 1 AND release_id = :id
    AND CASE WHEN each.key = 'thumbs_down_1h' THEN late_look ELSE look END <= :look
    GROUP BY 1, 2, 3, 4
    """
)


async def count_new(tx: AsyncSession, release_id: str, look: int) -> CellCounts:
    """Count what no look has counted before, and mark it as counted by this one."""
    parameters = {"id": release_id, "look": look}
    rows = [row for query in (_NEW, _NEW_LATE) for row in (await tx.execute(query, parameters)).all()]
    return _by_guardrail(rows)


async def count_again(tx: AsyncSession, release_id: str, look: int) -> CellCounts:
    """Count everything that was counted up to that look."""
    return _by_guardrail((await tx.execute(_COUNTED, {"id": release_id, "look": look})).all())


def _by_guardrail(rows: Iterable[Any]) -> CellCounts:
    counts: dict[Guardrail, dict[Cell, int]] = {}
    for name, probability, arm, value, count in rows:
        if name in _NAMES:
            counts.setdefault(Guardrail(name), {})[Cell(probability, arm == Arm.CANDIDATE, value)] = count
    return counts


async def met(tx: AsyncSession, release_id: str, stage: int, look: int) -> int:
    """Return how many units met the candidate in that stage, as of that look."""
    row = ReleaseObservation
    conditions = (row.release_id == release_id, row.stage == stage, row.arm == Arm.CANDIDATE, row.look <= look)
    return (await tx.execute(select(func.count()).where(*conditions))).scalar_one()


async def failures(tx: AsyncSession, release_id: str) -> Failures:
    """Return the candidate's newest failures in a row since the release was last resumed, and the stable arm's."""
    row, event = ReleaseObservation, ReleaseEvent
    resumed = select(func.max(event.occurred_at)).where(
        event.release_id == release_id, event.type == EventType.RELEASE_RESUMED
    )
    failed = func.greatest(_value(Guardrail.ERROR), _value(Guardrail.MALFORMED)) >= 1.0
    after = func.coalesce(resumed.scalar_subquery(), text("'-infinity'::timestamptz"))
    conditions = (row.release_id == release_id, row.observed_at > after)
    of_candidate = (*conditions, row.arm == Arm.CANDIDATE)
    fine = select(row.observed_at).where(*of_candidate, ~failed).order_by(row.observed_at.desc()).limit(1)
    last_fine = (await tx.execute(fine)).scalar_one_or_none()
    since = () if last_fine is None else (row.observed_at > last_fine,)
    in_a_row, first = (
        await tx.execute(select(func.count(), func.min(row.observed_at)).where(*of_candidate, *since))
    ).one()
    if not in_a_row:
        return Failures()
    stable = select(func.count(), func.count().filter(failed)).where(
        *conditions, row.arm == Arm.STABLE, row.observed_at >= first
    )
    return Failures(in_a_row, *(await tx.execute(stable)).one())


def _value(name: Guardrail) -> Any:
    return func.coalesce(ReleaseObservation.values[str(name)].as_float(), 0.0)


def cells_json(counts: CellCounts) -> dict[str, list[Json]]:
    """Return counts as JSON: `[probability, arm, value, units]` of each cell, by guardrail."""
    return {
        str(name): [
            [cell.probability, Arm.CANDIDATE if cell.candidate else Arm.STABLE, cell.value, units]
            for cell, units in sorted(cells.items())
        ]
        for name, cells in sorted(counts.items())
    }


def parse_cells(cells: Mapping[str, Iterable[Json]]) -> CellCounts:
    """Return the counts of `cells_json`."""
    return _by_guardrail((name, *cell) for name, rows in cells.items() for cell in rows)


def added(before: CellCounts, new: CellCounts) -> CellCounts:
    """Return the sums of both counts."""
    return {name: merged(before.get(name, {}), new.get(name, {})) for name in {**before, **new}}
