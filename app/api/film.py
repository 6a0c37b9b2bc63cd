"""The held-out scenarios of a run over its evaluated checkpoints."""

from typing import Annotated

from fastapi import Query

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentHeavyReads, CurrentQueries, RunId
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.runs.film import film
from learnloop_service.app.schemas.film import FilmOut
from learnloop_service.app.schemas.trajectories import Mode, Split

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
    return await heavy_reads.cached(caller.namespace, key, lambda database: film(database, run_id, split, mode))
