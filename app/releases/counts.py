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
from learnloop_service.app.releases.outcome_test import REPORTED, SILENT, USUAL, outcomes_of
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.two_arms import Cell, Counts, EffectEstimate, effect_estimate, merged

CellCounts = Mapping[str, Counts]
"""By guardrail, and the outcomes of reported and of silent units under those names."""
_NAMES = frozenset({*Guardrail, REPORTED, SILENT})


def _values(rows: str, condition: str) -> str:
    """Return SQL that counts the values of observations. They are rounded to hundredths, so that there are at most 101
    cells for each probability and arm."""
    return f"""
        SELECT each.key, probability, arm, round(each.value::numeric, 2)::float8, count(*)
        FROM {rows}, jsonb_each_text("values") AS each
        WHERE each.value IS NOT NULL AND probability > 0 AND probability < 1 AND {condition} GROUP BY 1, 2, 3, 4
    """


def _outcomes(rows: str, column: str = "outcome") -> str:
    """Return SQL that counts the outcomes of units, rounded to twentieths as forecasts are: an interval takes time for
    each cell."""
    return f"""
        SELECT CASE reported WHEN false THEN '{SILENT}' ELSE '{REPORTED}' END, probability, arm,
            round({column}::numeric * 20)::float8 / 20, count(*), forecast
        FROM {rows} AND {column} IS NOT NULL GROUP BY 1, 2, 3, 4, 6
    """


def _marked(table: str, mark: str, condition: str) -> str:
    """Return SQL that marks the rows that no look has counted, as the table `marked`."""
    new = f"release_id = :id AND {mark} IS NULL AND {condition}"
    return f"WITH marked AS (UPDATE {table} SET {mark} = :look WHERE {new} RETURNING *) "


# `thumbs_down_1h` is the only value of an observation that is not known with the answer, and has a mark of its own.
_LATE = f"'{Guardrail.THUMBS_DOWN_1H}'"
_NEW = [
    _marked("release_observation", "look", "true") + _values("marked", f"each.key <> {_LATE}"),
    _marked("release_observation", "late_look", f'"values" ? {_LATE}') + _values("marked", f"each.key = {_LATE}"),
    _marked("release_unit", "look", "outcome IS NOT NULL") + _outcomes("marked WHERE true"),
]
_SEEN = f"release_id = :id AND CASE WHEN each.key = {_LATE} THEN late_look ELSE look END <= :look"
_AGAIN = [_values("release_observation", _SEEN), _outcomes("release_unit WHERE release_id = :id AND look <= :look")]
_UNCOUNTED = "release_unit WHERE release_id = :id AND look IS NULL"


async def count_new(tx: AsyncSession, release_id: str, look: int) -> CellCounts:
    """Count what no look has counted before, and mark it as counted by this one."""
    return await _counted(tx, _NEW, {"id": release_id, "look": look})


async def count_again(tx: AsyncSession, release_id: str, look: int) -> CellCounts:
    """Count everything that was counted up to that look."""
    return await _counted(tx, _AGAIN, {"id": release_id, "look": look})


async def confirmation(tx: AsyncSession, release_id: str) -> list[EffectEstimate]:
    """Return the effects in the first and in the second windows of the units that no look has counted, because they
    were open when it decided."""
    queries = [_outcomes(_UNCOUNTED, column) for column in ("outcome", "second_outcome")]
    cells = [await _counted(tx, [query], {"id": release_id}) for query in queries]
    return [effect_estimate(outcomes_of(counts), USUAL) for counts in cells]


async def _counted(tx: AsyncSession, queries: Iterable[str], parameters: Mapping[str, Json]) -> CellCounts:
    return _by_name([row for query in queries for row in (await tx.execute(text(query), parameters)).all()])


def _by_name(rows: Iterable[Any]) -> CellCounts:
    counts: dict[str, dict[Cell, int]] = {}
    for name, probability, arm, value, count, *forecast in rows:
        if name in _NAMES:
            counts.setdefault(name, {})[Cell(probability, arm == Arm.CANDIDATE, value, *forecast)] = count
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
    """Return counts as JSON: `[probability, arm, value, units, forecast]` of each cell, by guardrail."""
    return {str(name): _rows(cells) for name, cells in sorted(counts.items())}


def parse_cells(cells: Mapping[str, Iterable[Json]]) -> CellCounts:
    """Return the counts of `cells_json`."""
    return _by_name((name, *cell) for name, rows in cells.items() for cell in rows)


def _rows(cells: Counts) -> list[Json]:
    rows: list[list[Json]] = [
        [cell.probability, Arm.CANDIDATE if cell.candidate else Arm.STABLE, cell.value, units]
        + ([] if cell.forecast is None else [cell.forecast])
        for cell, units in cells.items()
    ]
    return sorted(rows, key=lambda row: (row[0], row[1] == Arm.CANDIDATE, row[2], row[4:]))


def added(before: CellCounts, new: CellCounts) -> CellCounts:
    """Return the sums of both counts."""
    return {name: merged(before.get(name, {}), new.get(name, {})) for name in {**before, **new}}
