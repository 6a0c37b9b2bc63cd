"""Runs: see how they go, cancel them."""

from typing import Annotated

from fastapi import APIRouter, Query

from app import schemas
from app.api import presentation, results
from app.api.dependencies import CurrentCaller, CurrentService, IdCursor, Limit, NumberCursor, RunId
from app.api.links import results_path, run_links
from app.runs.state import RunStatus

router = APIRouter(tags=["runs"])
router.include_router(results.router)


@router.get("/runs")
async def list_runs(
    service: CurrentService,
    caller: CurrentCaller,
    status: Annotated[RunStatus | None, Query()] = None,
    cursor: IdCursor = None,
    limit: Limit = 50,
) -> schemas.Page[schemas.RunBrief]:
    """The newest first."""
    found = await service.queries.runs(status=status, before=cursor, limit=limit + 1, project=caller.project)
    return presentation.page(found, limit, presentation.run_brief, lambda run: run.id)


@router.get("/runs/{run_id}")
async def get_run(service: CurrentService, run_id: RunId) -> schemas.RunOut:
    """Status, progress, the curve of rewards, held-out figures, best checkpoint, error."""
    return presentation.run_whole(await service.queries.figures(run_id))


@router.get("/runs/{run_id}/iterations")
async def list_iterations(
    service: CurrentService, run_id: RunId, cursor: NumberCursor = None, limit: Limit = 50
) -> schemas.Page[schemas.IterationOut]:
    """In order, in full."""
    await service.queries.require_run(run_id)
    found = await service.queries.iterations(run_id, after=_after(cursor), limit=limit + 1)
    return presentation.page(found, limit, presentation.iteration, lambda shown: shown.row.iteration)


@router.get("/runs/{run_id}/checkpoints")
async def list_checkpoints(
    service: CurrentService, run_id: RunId, cursor: NumberCursor = None, limit: Limit = 50
) -> schemas.Page[schemas.CheckpointOut]:
    """In order of their steps."""
    await service.queries.require_run(run_id)
    found = await service.queries.checkpoints(run_id, after=_after(cursor), limit=limit + 1)
    return presentation.page(
        found,
        limit,
        lambda row: schemas.CheckpointOut.model_validate(row, from_attributes=True),
        lambda row: row.step,
    )


@router.post("/runs/{run_id}/cancel", status_code=202)
async def cancel_run(service: CurrentService, run_id: RunId) -> schemas.Accepted:
    """Stop a run. It is `cancelled` once nothing of it works any more; poll it until then."""
    status = await service.store.request_cancel(run_id)
    service.runner.cancel(run_id)
    return schemas.Accepted(run_id=run_id, status=status, results_path=results_path(run_id), links=run_links(run_id))


def _after(cursor: str | None) -> int:
    return -1 if cursor is None else int(cursor)
