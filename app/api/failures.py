"""The patterns of failures, of an evaluation or of a run's iteration."""

from typing import Annotated

from fastapi import Query

from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentDatabase, CurrentHeavyReads, RunIdQuery
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.operations.failure_map import failure_map
from learnloop_service.app.operations.failure_sides import FailureQuestion, failure_sides
from learnloop_service.app.schemas.failures import FailureMap
from learnloop_service.app.schemas.trajectories import Mode, Split

router = keyed_router("evaluations")


@router.get("/failures")
async def get_failures(
    database: CurrentDatabase,
    heavy_reads: CurrentHeavyReads,
    caller: CurrentCaller,
    evaluation: Annotated[
        str | None, Query(max_length=64, pattern=NO_NUL, description="Id of the evaluation that is asked about")
    ] = None,
    model: Annotated[
        str | None, Query(max_length=400, pattern=NO_NUL, description="Label of its model. Default: the last one")
    ] = None,
    run: RunIdQuery = None,
    iteration: Annotated[
        int | None, Query(ge=0, lt=2**31, description="Iteration of the run. Default: the newest with such rollouts")
    ] = None,
    split: Annotated[
        Split | None, Query(description="Split of the run's rollouts. Default: validation, else test, else train")
    ] = None,
    mode: Annotated[Mode | None, Query(description="Mode of the run's rollouts. Default: sampled, else greedy")] = None,
    before: Annotated[
        str | None,
        Query(
            max_length=64,
            pattern=NO_NUL,
            description="Id of an evaluation, or an iteration of the run, to compare with. Default: the first model of "
            "the evaluation, or the first evaluation of the run",
        ),
    ] = None,
) -> FailureMap:
    """Count the tasks that fail by the pattern of their failures, now and before.

    Name an evaluation or a run. A rollout's pattern depends on that rollout alone: how it ended, and what it missed.
    """
    question = FailureQuestion(evaluation, model, run, iteration, split, mode, before)
    sides = await failure_sides(database, caller, question)
    key = ("failures", *sides)
    return await heavy_reads.cached(caller.namespace, key, lambda database: failure_map(database, *sides))
