"""Compares two runs by the held-out scenarios on which one of them succeeds and the other does not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Integer, Row, cast, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, Trajectory
from learnloop_service.app.runs.resume_point import evaluated_successes
from learnloop_service.app.schemas.comparison import ComparedKindOut, DecidedScenarioOut, RunDifference, SideOut
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.difference import difference

MAX_SCENARIOS = 200
"""Maximum number of scenarios that are listed for each of the two runs."""
Kind = tuple[str, str]
"""Split and mode of an evaluation."""


@dataclass(frozen=True, slots=True)
class _Newest:
    run_id: str
    iteration: int
    successes: Mapping[str, float]


async def compare_runs(database: Database, run_id: str, other_id: str) -> list[ComparedKindOut]:
    """Compare the runs' newest evaluations of each kind that both have."""
    async with database() as tx:
        ours, theirs = [await _newest(tx, id) for id in (run_id, other_id)]
        return [await _compared(tx, kind, ours[kind], theirs[kind]) for kind in ours if kind in theirs]


async def _newest(tx: AsyncSession, run_id: str) -> dict[Kind, _Newest]:
    """Return a run's newest evaluation of each kind, sampled validation first."""
    newest = select(Evaluation.split, Evaluation.mode, func.max(Evaluation.iteration))
    of_run = newest.where(Evaluation.run_id == run_id).group_by(Evaluation.split, Evaluation.mode)
    rows = (await tx.execute(of_run.order_by(Evaluation.split.desc(), Evaluation.mode.desc()))).all()
    successes = {iteration: await evaluated_successes(tx, run_id, iteration) for *_, iteration in rows}
    return {
        (split, mode): _Newest(run_id, iteration, successes[iteration].get((split, mode), {}))
        for split, mode, iteration in rows
    }


async def _compared(tx: AsyncSession, kind: Kind, run: _Newest, other: _Newest) -> ComparedKindOut:
    gains = {id: other.successes[id] - share for id, share in run.successes.items() if id in other.successes}
    lost, won = [id for id in gains if gains[id] < 0], [id for id in gains if gains[id] > 0]
    lost.sort(key=lambda id: (gains[id], id))
    won.sort(key=lambda id: (-gains[id], id))
    change = difference(run.successes, other.successes)
    split, mode = kind
    compared = {
        "split": split,
        "mode": mode,
        "run_iteration": run.iteration,
        "other_iteration": other.iteration,
        "difference": None if change is None else RunDifference.of(change),
        "run_better": len(lost),
        "other_better": len(won),
        "run_wins": await _decided(tx, kind, run, other, lost[:MAX_SCENARIOS], is_run_better=True),
        "other_wins": await _decided(tx, kind, run, other, won[:MAX_SCENARIOS], is_run_better=False),
    }
    return ComparedKindOut.model_validate(compared)


async def _decided(
    tx: AsyncSession, kind: Kind, run: _Newest, other: _Newest, ids: Sequence[str], *, is_run_better: bool
) -> list[DecidedScenarioOut]:
    ours = await _rollouts(tx, kind, run, ids, succeeded=is_run_better)
    theirs = await _rollouts(tx, kind, other, ids, succeeded=not is_run_better)
    return [
        DecidedScenarioOut(
            scenario_id=id,
            scenario=ours[id].scenario,
            run=SideOut(success=run.successes[id], trajectory_id=ours[id].id),
            other=SideOut(success=other.successes[id], trajectory_id=theirs[id].id),
        )
        for id in ids
    ]


async def _rollouts(
    tx: AsyncSession, kind: Kind, of: _Newest, ids: Iterable[str], *, succeeded: bool
) -> dict[str, Row[str, str, dict[str, Json]]]:
    """Return one rollout of each scenario, one whose success is `succeeded` if there is any."""
    row = Trajectory
    success = cast(func.coalesce(row.success, False), Integer)
    query = (
        select(row.scenario_id, row.id, row.scenario)
        .ext(distinct_on(row.scenario_id))
        .where(row.run_id == of.run_id, row.iteration == of.iteration, row.kind == "evaluation")
        .where(row.split == kind[0], row.mode == kind[1], row.scenario_id.in_(ids))
        .order_by(row.scenario_id, success.desc() if succeeded else success, row.seq)
    )
    return {rollout.scenario_id: rollout for rollout in await tx.execute(query)}
