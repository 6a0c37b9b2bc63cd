"""The held-out scenarios of a run over its evaluated checkpoints."""

from typing import Annotated

from fastapi import Query

from app.api.dependencies import CurrentCaller, CurrentHeavyReads, CurrentQueries, RunId
from app.api.routers import keyed_router
from app.runs.film import film
from app.schemas.film import BehaviourOut, FilmCheckpoint, FilmOut, FilmScenario
from app.schemas.intervals import IntervalOut
from app.schemas.trajectories import Mode, Split
from app.statistics.behaviours import Behaviour

router = keyed_router("runs")


@router.get("/runs/{run_id}/film")
async def get_film(
    heavy_reads: CurrentHeavyReads,
    queries: CurrentQueries,
    caller: CurrentCaller,
    run_id: RunId,
    split: Annotated[Split, Query(description="Split of the scenarios")] = "validation",
    mode: Annotated[Mode, Query(description="Sampled or greedy rollouts")] = "sampled",
) -> FilmOut:
    """Get the film of a run: its held-out scenarios by evaluated checkpoints.

    Shows when each scenario was learned, and what the agent does differently since. The size of the response is
    bounded: see `checkpoints` and `scenarios`.
    """
    key = ("film", run_id, split, mode, await queries.next_iteration(run_id))
    found = await heavy_reads.kept(caller.namespace, key, lambda database: film(database, run_id, split, mode))
    return FilmOut(
        run_id=run_id,
        split=split,
        mode=mode,
        checkpoints_total=found.evaluated,
        checkpoints=[FilmCheckpoint.model_validate(each, from_attributes=True) for each in found.checkpoints],
        scenarios_total=found.scenarios_total,
        scenarios=[FilmScenario.model_validate(each, from_attributes=True) for each in found.scenarios],
        behaviours=[_behaviour(each) for each in found.behaviours.shown],
        behaviours_compared=found.behaviours.compared,
    )


def _behaviour(found: Behaviour) -> BehaviourOut:
    mean, low, high = (round(100 * each, 1) for each in (found.change.mean, found.change.low, found.change.high))
    points = IntervalOut(mean=mean, low=low, high=high)
    return BehaviourOut(what=found.what, before=found.before, after=found.after, points=points)
