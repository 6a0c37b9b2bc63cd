"""The patterns of failures, of an evaluation or of a run's iteration."""

from typing import Annotated

from fastapi import Query

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentDatabase, CurrentHeavyReads
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.operations.failure_map import failure_map
from learnloop_service.app.operations.failure_sides import failure_sides
from learnloop_service.app.schemas.failures import FailureMap, FailureQuestion

router = keyed_router("evaluations")


@router.get("/failures")
async def get_failures(
    database: CurrentDatabase,
    heavy_reads: CurrentHeavyReads,
    caller: CurrentCaller,
    question: Annotated[FailureQuestion, Query()],
) -> FailureMap:
    """Count the tasks that fail by the pattern of their failures, now and before.

    Name an evaluation or a run. A rollout's pattern depends on that rollout alone: how it ended, and what it missed.
    """
    sides = await failure_sides(database, caller, question)
    key = ("failures", *sides)
    return await heavy_reads.cached(caller.namespace, key, lambda database: failure_map(database, *sides))
