"""Comparisons of two runs."""

from typing import Annotated

from fastapi import Query

from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentDatabase, CurrentQueries, RunId
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.tenancy import RUN, require
from learnloop_service.app.operations.compare_runs import compare_runs
from learnloop_service.app.schemas.comparison import RunComparison

router = keyed_router("runs")


@router.get("/runs/{run_id}/comparison")
async def compare_with(
    database: CurrentDatabase,
    queries: CurrentQueries,
    caller: CurrentCaller,
    run_id: RunId,
    other: Annotated[str, Query(max_length=64, pattern=NO_NUL, description="Id of the other run")],
) -> RunComparison:
    """List the held-out scenarios that one run answers and another does not."""
    await require(database, caller, RUN, other)
    seeds = [await queries.held_out_seed(id) for id in (run_id, other)]
    return RunComparison(
        run_id=run_id,
        other_id=other,
        run_held_out_seed=seeds[0],
        other_held_out_seed=seeds[1],
        held_out=await compare_runs(database, run_id, other),
    )
