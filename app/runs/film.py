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
class _Selection:
    """Selects the rollouts of a run's held-out evaluations of one split and mode."""

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
    selection = _Selection(run_id, split, mode)
    async with database() as tx:
        evaluated = await _evaluated(tx, selection)
        checkpoints = chosen(evaluated)
        ends = [*checkpoints[:1], *checkpoints[-1:]]
        total, scenarios = await _scenarios(tx, selection, {checkpoint.iteration for checkpoint in ends})
        counts = await _counts(tx, selection, checkpoints, list(scenarios))
        acts = [await _acts(tx, selection, checkpoint) for checkpoint in ends] if len(checkpoints) > 1 else [[], []]
    rows = [_scenario(id, scenario, checkpoints, counts) for id, scenario in scenarios.items()]
    rows.sort(key=lambda scenario: (*order(shares(scenario)), scenario.scenario_id))
    comparison = await asyncio.to_thread(behaviours, *acts)
    return FilmOut(
        run_id=run_id,
        split=split,
        mode=mode,
        checkpoints_total=len(evaluated),
        checkpoints=checkpoints,
        scenarios_total=total,
        scenarios=rows,
        behaviours=[_behaviour(behaviour) for behaviour in comparison.shown],
        behaviours_compared=comparison.compared,
    )


def _behaviour(behaviour: Behaviour) -> BehaviourOut:
    points = IntervalOut.points(behaviour.change.mean, behaviour.change.low, behaviour.change.high)
    return BehaviourOut(what=behaviour.what, before=behaviour.before, after=behaviour.after, points=points)


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


async def _evaluated(tx: AsyncSession, selection: _Selection) -> list[FilmCheckpoint]:
    """Return the evaluated checkpoints, in order."""
    same_step = and_(Checkpoint.run_id == Evaluation.run_id, Checkpoint.step == Evaluation.step)
    query = (
        select(
            Evaluation.iteration,
            Evaluation.step,
            Evaluation.success,
            and_(Checkpoint.step.is_not(None), Checkpoint.deleted_at.is_(None)).label("is_kept"),
        )
        .outerjoin(Checkpoint, same_step)
        .where(
            Evaluation.run_id == selection.run_id,
            Evaluation.split == selection.split,
            Evaluation.mode == selection.mode,
        )
        .order_by(Evaluation.iteration, Evaluation.step)
    )
    return [FilmCheckpoint.of(row) for row in await tx.execute(query)]


async def _scenarios(
    tx: AsyncSession, selection: _Selection, iterations: Iterable[int]
) -> tuple[int, dict[str, Mapping[str, Json]]]:
    """Return how many scenarios these evaluations have, and the first of them by id."""
    of_evaluations = selection.of(iterations)
    total = (await tx.execute(select(func.count(Trajectory.scenario_id.distinct())).where(of_evaluations))).scalar_one()
    query = (
        select(Trajectory.scenario_id, Trajectory.scenario)
        .ext(distinct_on(Trajectory.scenario_id))
        .where(of_evaluations)
        .order_by(Trajectory.scenario_id)
        .limit(MAX_SCENARIOS)
    )
    rows = (await tx.execute(query)).all()
    return total, {row.scenario_id: row.scenario for row in rows}


_Counts = Mapping[tuple[str, int | None, int | None], tuple[int, int]]
"""Right rollouts and all rollouts by scenario, iteration and step."""


async def _counts(
    tx: AsyncSession, selection: _Selection, checkpoints: Sequence[FilmCheckpoint], scenarios: Sequence[str]
) -> _Counts:
    columns = (Trajectory.scenario_id, Trajectory.iteration, Trajectory.step)
    query = (
        select(*columns, func.count().filter(Trajectory.success.is_(True)), func.count())
        .where(
            selection.of({checkpoint.iteration for checkpoint in checkpoints}), Trajectory.scenario_id.in_(scenarios)
        )
        .group_by(*columns)
    )
    return {
        (id, iteration, step): (right, rollouts) for id, iteration, step, right, rollouts in await tx.execute(query)
    }


def _scenario(
    id: str, scenario: Mapping[str, Json], checkpoints: Sequence[FilmCheckpoint], counts: _Counts
) -> FilmScenario:
    cells = [counts.get((id, checkpoint.iteration, checkpoint.step), (0, 0)) for checkpoint in checkpoints]
    success = [right / rollouts if rollouts else None for right, rollouts in cells]
    since = learned_at(success)
    expected = scenario["reference"].get("answer")
    return FilmScenario(
        scenario_id=id,
        task={name: _cut(value) for name, value in islice(scenario["task"].items(), _MOST_FIELDS)},
        expected=expected[:_LONGEST] if isinstance(expected, str) else None,
        trend=trend(success),
        learned_at=None if since is None else checkpoints[since].iteration,
        right=[right for right, _ in cells],
        rollouts=[rollouts for _, rollouts in cells],
    )


def _cut(value: Json) -> Json:
    """Return a value of a task, cut so that a list of tasks stays small."""
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


async def _acts(tx: AsyncSession, selection: _Selection, checkpoint: FilmCheckpoint) -> list[Act]:
    """Return what the agent did in the rollouts of an evaluation. Messages are left in the database."""
    query = (
        select(Trajectory.scenario_id, END, _CALLS)
        .where(selection.of([checkpoint.iteration]), Trajectory.step == checkpoint.step)
        .order_by(Trajectory.seq)
        .limit(MAX_ACTS)
    )
    return [Act(id, list(_calls(calls)), end or "") for id, end, calls in await tx.execute(query)]


def _calls(calls: Sequence[Json]) -> Iterable[tuple[str, str]]:
    return ((str(call.get("name")), str(call.get("arguments"))) for call in calls if isinstance(call, dict))
