"""Runs: inspect, edit, cancel, pause, resume, retry, fork and delete them."""

from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import Field
from ulid import ULID

from learnloop_service.app.api import presentation
from learnloop_service.app.api.dependencies import (
    NO_NUL,
    CurrentCaller,
    CurrentHeavyReads,
    CurrentQueries,
    CurrentRunDocuments,
    CurrentRunner,
    CurrentService,
    CurrentStore,
    Limit,
    NumberCursor,
    RunId,
)
from learnloop_service.app.api.links import results_path, run_links
from learnloop_service.app.api.pages import ByNumber, Paging
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.api.start import saved_reply
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.operations.delete_run import remove
from learnloop_service.app.operations.diagnose_run import diagnosis
from learnloop_service.app.operations.start.evaluation import check_new_budget
from learnloop_service.app.operations.start.fork import fork
from learnloop_service.app.runs.log import run_log
from learnloop_service.app.runs.metrics import LONGEST_NAME, MAX_NAMES, run_metrics
from learnloop_service.app.runs.reward_histogram import reward_histogram
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.diagnosis import RunDiagnosis
from learnloop_service.app.schemas.metrics import LogLevel, RunLog, RunMetrics
from learnloop_service.app.schemas.run_request import ForkRequest, ResumeRequest, RunEdit
from learnloop_service.app.schemas.runs import (
    Accepted,
    CheckpointOut,
    IterationOut,
    LearnLoopAccepted,
    RewardHistograms,
    RunBrief,
    RunOut,
)
from learnloop_service.app.worker.runner import Runner

router = keyed_router("runs")


@router.get("/runs/{run_id}", response_model=RunOut)
async def get_run(documents: CurrentRunDocuments, run_id: RunId) -> Response:
    """Get a run. Shows status, progress, learning curve, held-out figures, best checkpoint, cost and error."""
    return Response(await documents.get(run_id), media_type="application/json")


@router.patch("/runs/{run_id}")
async def edit_run(store: CurrentStore, run_id: RunId, change: RunEdit) -> RunBrief:
    """Name, tag, annotate or star a run. Training does not see any of it."""
    return presentation.run_brief(await store.edit(run_id, change.model_dump(exclude_unset=True)))


@router.delete("/runs/{run_id}")
async def delete_run(service: CurrentService, run_id: RunId) -> RunBrief:
    """Delete a run that has ended, and return what it was. Everything that belongs to it is deleted.

    Its model is deleted too, unless another run needs it.
    """
    return presentation.run_brief(await remove(service, service.store, run_id))


@router.get("/runs/{run_id}/iterations")
async def list_iterations(queries: CurrentQueries, run_id: RunId, paging: ByNumber) -> Page[IterationOut]:
    """List a run's iterations in order, with all figures."""
    await queries.require_run(run_id)
    iterations = await queries.iterations(run_id, after=_after(paging), limit=paging.fetched)
    return paging.page(iterations, presentation.iteration, lambda stored: stored.row.iteration)


@router.get("/runs/{run_id}/rewards")
async def list_rewards(
    heavy_reads: CurrentHeavyReads, queries: CurrentQueries, caller: CurrentCaller, run_id: RunId
) -> RewardHistograms:
    """Count the rewards of a run's training rollouts. All iterations share the bins."""
    key = ("rewards", run_id, await queries.next_iteration(run_id))
    return await heavy_reads.cached(caller.namespace, key, lambda database: reward_histogram(database, run_id))


@router.get("/runs/{run_id}/metrics")
async def list_metrics(
    heavy_reads: CurrentHeavyReads,
    queries: CurrentQueries,
    caller: CurrentCaller,
    run_id: RunId,
    name: Annotated[
        list[Annotated[str, Field(max_length=LONGEST_NAME, pattern=NO_NUL)]] | None,
        Query(max_length=MAX_NAMES, description="Return the values of these metrics. Default: only the names of all"),
    ] = None,
) -> RunMetrics:
    """List the metrics of a run over its iterations.

    Every figure that is stored is a metric, such as `train_metrics.loss`. Figures of single rollouts are means over the
    iteration's training rollouts whose records are kept.
    """
    names = tuple(name or ())
    key = ("metrics", run_id, await queries.next_iteration(run_id), names)
    return await heavy_reads.cached(caller.namespace, key, lambda database: run_metrics(database, run_id, names))


@router.get("/runs/{run_id}/log")
async def list_log(
    store: CurrentStore,
    heavy_reads: CurrentHeavyReads,
    caller: CurrentCaller,
    run_id: RunId,
    level: Annotated[
        list[LogLevel] | None, Query(max_length=3, description="Only lines of these levels. Default: all")
    ] = None,
    order: Annotated[
        Literal["level", "time"], Query(description="Errors first, then warnings, or all lines by their time")
    ] = "level",
    cursor: NumberCursor = None,
    limit: Limit = 50,
) -> RunLog:
    """List what happened in a run, errors first.

    The lines are its events, the rollouts that failed, and the failures of judges; those of a level come newest first.
    """
    run = await store.get(run_id)
    levels, start = tuple(level or LogLevel), int(cursor or 0)
    key = ("log", run_id, run.event_seq, levels, order, start, limit)
    return await heavy_reads.cached(
        caller.namespace,
        key,
        lambda database: run_log(database, run_id, levels, is_by_level=order == "level", start=start, limit=limit),
    )


@router.get("/runs/{run_id}/checkpoints")
async def list_checkpoints(queries: CurrentQueries, run_id: RunId, paging: ByNumber) -> Page[CheckpointOut]:
    """List a run's checkpoints, ordered by step."""
    await queries.require_run(run_id)
    checkpoints = await queries.checkpoints(run_id, after=_after(paging), limit=paging.fetched)
    return paging.page(checkpoints, CheckpointOut.of, lambda row: row.step)


@router.get("/runs/{run_id}/diagnosis")
async def get_diagnosis(service: CurrentService, store: CurrentStore, run_id: RunId) -> RunDiagnosis:
    """Say why a run does not learn. Each cause has its evidence and a remedy, which is the body of a fork."""
    return await diagnosis(service.database, await store.get(run_id))


@router.post("/runs/{run_id}/cancel", status_code=202)
async def cancel_run(runner: CurrentRunner, store: CurrentStore, caller: CurrentCaller, run_id: RunId) -> Accepted:
    """Cancel a run permanently. Poll the run: its status is `cancelled` once all its work has stopped."""
    return _accepted_move(runner, run_id, await store.cancel(run_id, caller.actor))


@router.post("/runs/{run_id}/pause", status_code=202)
async def pause_run(runner: CurrentRunner, store: CurrentStore, caller: CurrentCaller, run_id: RunId) -> Accepted:
    """Pause a run. Finished work is kept; its status is `paused` once all its work has stopped."""
    return _accepted_move(runner, run_id, await store.pause(run_id, caller.actor))


@router.post("/runs/{run_id}/resume", status_code=202)
async def resume_run(
    service: CurrentService,
    runner: CurrentRunner,
    store: CurrentStore,
    caller: CurrentCaller,
    run_id: RunId,
    request: ResumeRequest | None = None,
) -> Accepted:
    """Resume a paused run where it stopped. If its budget is used up, give a higher one."""
    budget = request.budget.model_dump(exclude_unset=True) if request and request.budget else None
    async with service.database() as tx:
        run = await tx.get(Run, run_id)
    if run is not None:
        check_new_budget(budget, run.stored_request.judge, (), service.settings)
    return _accepted_move(runner, run_id, await store.resume(run_id, caller.actor, budget))


@router.post("/runs/{run_id}/retry", status_code=202)
async def retry_run(runner: CurrentRunner, store: CurrentStore, caller: CurrentCaller, run_id: RunId) -> Accepted:
    """Retry a failed run. It continues after the last work that was saved."""
    return _accepted_move(runner, run_id, await store.retry(run_id, caller.actor))


@router.post("/runs/{run_id}/fork", status_code=202)
async def fork_run(
    service: CurrentService, caller: CurrentCaller, run_id: RunId, request: ForkRequest | None = None
) -> LearnLoopAccepted:
    """Start a new run from a checkpoint of this one. Fields that are not given are taken from this run's request."""
    request = request or ForkRequest()
    new_id = str(ULID())
    save = saved_reply(new_id, has_webhooks=bool(request.webhooks))
    started = await fork(service, new_id, run_id, request, caller, save)
    return presentation.accepted(new_id, started)


def _accepted_move(runner: Runner, run_id: str, status: RunStatus) -> Accepted:
    runner.nudge(run_id)
    return Accepted(run_id=run_id, status=status, results_path=results_path(run_id), links=run_links(run_id))


def _after(paging: Paging) -> int:
    return min(paging.after(-1), 2**31 - 1)
