"""Reads a run's held-out scenarios over its evaluated checkpoints, and what its agent does differently since then.

The size of the result and the work are bounded, however often a run was evaluated and on however many scenarios.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal_column, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Evaluation, Trajectory
from learnloop_service.app.runs.rollout_filters import END
from learnloop_service.app.schemas.film import BehaviourOut, FilmCheckpoint, FilmOut, FilmScenario
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.trajectories import Mode, Split
from learnloop_service.app.statistics.behaviours import Act, Behaviour, behaviours
from learnloop_service.app.statistics.trends import learned_at, order, trend
from learnloop_service.environment.json_type import Json

MAX_CHECKPOINTS = 24
MAX_SCENARIOS = 200
MAX_ACTS = 1_000
"""Maximum number of rollouts of each of the two evaluations that are compared."""
_LONGEST = 200
"""Maximum number of characters of a text of a task and of an expected answer."""
_MOST_FIELDS = 12
_CALLS: ColumnElement[list[Json]] = literal_column(
    """jsonb_path_query_array(trajectory.messages, '$[*] ? (@.role == "assistant").tool_calls[*].function')"""
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Which rollouts: those of a run's held-out evaluations of one split and mode."""

    run_id: str
    split: str
    mode: str

    def of(self, iterations: Iterable[int]) -> Any:
        """Return the condition for the rollouts of these iterations."""
        return and_(
            Trajectory.run_id == self.run_id,
            Trajectory.iteration.in_(iterations),
            Trajectory.kind == "evaluation",
            Trajectory.split == self.split,
            Trajectory.mode == self.mode,
        )


async def film(database: Database, run_id: str, split: Split, mode: Mode) -> FilmOut:
    """Return the film of a run's evaluations of one split and mode; without any, it is empty."""
    place = _Place(run_id, split, mode)
    async with database() as tx:
        evaluated = await _evaluated(tx, place)
        shown = chosen(evaluated)
        ends = [*shown[:1], *shown[-1:]]
        total, scenarios = await _scenarios(tx, place, {each.iteration for each in ends})
        counts = await _counts(tx, place, shown, list(scenarios))
        acts = [await _acts(tx, place, each) for each in ends] if len(shown) > 1 else [[], []]
    rows = [_scenario(id, scenario, shown, counts) for id, scenario in scenarios.items()]
    rows.sort(key=lambda each: (*order(shares(each)), each.scenario_id))
    found = await asyncio.to_thread(behaviours, *acts)
    return FilmOut(
        run_id=run_id,
        split=split,
        mode=mode,
        checkpoints_total=len(evaluated),
        checkpoints=shown,
        scenarios_total=total,
        scenarios=rows,
        behaviours=[_behaviour(each) for each in found.shown],
        behaviours_compared=found.compared,
    )


def _behaviour(found: Behaviour) -> BehaviourOut:
    points = IntervalOut.points(found.change.mean, found.change.low, found.change.high)
    return BehaviourOut(what=found.what, before=found.before, after=found.after, points=points)


def shares(scenario: FilmScenario) -> list[float | None]:
    """Return the share of right rollouts at each checkpoint; None where there are none."""
    pairs = zip(scenario.right, scenario.rollouts, strict=True)
    return [right / rollouts if rollouts else None for right, rollouts in pairs]


def chosen(evaluated: Sequence[FilmCheckpoint]) -> list[FilmCheckpoint]:
    """Return the first and the last of these checkpoints and, evenly spread, those between, as far as they fit."""
    most = min(MAX_CHECKPOINTS, len(evaluated))
    if most < 2:
        return list(evaluated)
    return [evaluated[number * (len(evaluated) - 1) // (most - 1)] for number in range(most)]


async def _evaluated(tx: AsyncSession, place: _Place) -> list[FilmCheckpoint]:
    """Return the evaluated checkpoints, in order."""
    made = and_(Checkpoint.run_id == Evaluation.run_id, Checkpoint.step == Evaluation.step)
    query = (
        select(
            Evaluation.iteration,
            Evaluation.step,
            Evaluation.success,
            and_(Checkpoint.step.is_not(None), Checkpoint.deleted_at.is_(None)).label("is_kept"),
        )
        .outerjoin(Checkpoint, made)
        .where(Evaluation.run_id == place.run_id, Evaluation.split == place.split, Evaluation.mode == place.mode)
        .order_by(Evaluation.iteration, Evaluation.step)
    )
    return [FilmCheckpoint.of(row) for row in await tx.execute(query)]


async def _scenarios(
    tx: AsyncSession, place: _Place, iterations: Iterable[int]
) -> tuple[int, dict[str, Mapping[str, Json]]]:
    """Return how many scenarios these evaluations have, and the first of them by id."""
    mine = place.of(iterations)
    total = (await tx.execute(select(func.count(Trajectory.scenario_id.distinct())).where(mine))).scalar_one()
    query = (
        select(Trajectory.scenario_id, Trajectory.scenario)
        .ext(distinct_on(Trajectory.scenario_id))
        .where(mine)
        .order_by(Trajectory.scenario_id)
        .limit(MAX_SCENARIOS)
    )
    rows = (await tx.execute(query)).all()
    return total, {row.scenario_id: row.scenario for row in rows}


_Counts = Mapping[tuple[str, int | None, int | None], tuple[int, int]]
"""Right rollouts and all rollouts by scenario, iteration and step."""


async def _counts(
    tx: AsyncSession, place: _Place, shown: Sequence[FilmCheckpoint], scenarios: Sequence[str]
) -> _Counts:
    columns = (Trajectory.scenario_id, Trajectory.iteration, Trajectory.step)
    query = (
        select(*columns, func.count().filter(Trajectory.success.is_(True)), func.count())
        .where(place.of({each.iteration for each in shown}), Trajectory.scenario_id.in_(scenarios))
        .group_by(*columns)
    )
    return {(id, iteration, step): (right, made) for id, iteration, step, right, made in await tx.execute(query)}


def _scenario(id: str, scenario: Mapping[str, Json], shown: Sequence[FilmCheckpoint], counts: _Counts) -> FilmScenario:
    cells = [counts.get((id, each.iteration, each.step), (0, 0)) for each in shown]
    found = [right / made if made else None for right, made in cells]
    since = learned_at(found)
    expected = scenario["reference"].get("answer")
    return FilmScenario(
        scenario_id=id,
        task={name: _cut(value) for name, value in islice(scenario["task"].items(), _MOST_FIELDS)},
        expected=expected[:_LONGEST] if isinstance(expected, str) else None,
        trend=trend(found),
        learned_at=None if since is None else shown[since].iteration,
        right=[right for right, _ in cells],
        rollouts=[made for _, made in cells],
    )


def _cut(value: Json) -> Json:
    """Return a value of a task, cut so that a list of tasks stays small."""
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


async def _acts(tx: AsyncSession, place: _Place, checkpoint: FilmCheckpoint) -> list[Act]:
    """Return what the agent did in the rollouts of an evaluation. Messages are left in the database."""
    query = (
        select(Trajectory.scenario_id, END, _CALLS)
        .where(place.of([checkpoint.iteration]), Trajectory.step == checkpoint.step)
        .order_by(Trajectory.seq)
        .limit(MAX_ACTS)
    )
    return [Act(id, list(_calls(calls)), end or "") for id, end, calls in await tx.execute(query)]


def _calls(calls: Sequence[Json]) -> Iterable[tuple[str, str]]:
    return ((str(call.get("name")), str(call.get("arguments"))) for call in calls if isinstance(call, dict))
