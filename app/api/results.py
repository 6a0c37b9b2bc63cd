"""Results of a run: documents, node scores, judges' costs and agreement, and verification of all figures."""

import asyncio
from typing import Annotated

from fastapi import Path, Query
from fastapi.responses import StreamingResponse

from learnloop_service.app.api.dependencies import (
    CurrentCaller,
    CurrentDatabase,
    CurrentHeavyReads,
    CurrentJudging,
    CurrentQueries,
    CurrentSettings,
    CurrentStore,
    Limit,
    NumberCursor,
    RunId,
)
from learnloop_service.app.api.links import results_path
from learnloop_service.app.api.pages import ByNumber
from learnloop_service.app.api.presentation import node_scores
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.operations.judge_agreement import agreement_of
from learnloop_service.app.operations.verify.run import verify
from learnloop_service.app.results.documents import Results, content_type
from learnloop_service.app.results.files import results_folder, sizes
from learnloop_service.app.schemas.agreement import Agreement, AgreementRequest
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.results import JudgeCallOut, NodeScores, ResultItem, RunResults, Verification

router = keyed_router("results")
Iteration = Annotated[int | None, Query(ge=0, lt=2**31, description="Iteration to show, from 0. Default: the latest")]
OfIteration = Annotated[
    int | None, Query(ge=0, lt=2**31, description="Only calls of this iteration, from 0. Default: all")
]
ResultName = Annotated[str, Path(description="Name of the document, such as `iter1_email.json`")]


@router.get("/runs/{run_id}/results")
async def list_results(
    store: CurrentStore,
    database: CurrentDatabase,
    settings: CurrentSettings,
    run_id: RunId,
    cursor: NumberCursor = None,
    limit: Limit = 50,
) -> RunResults:
    """List the result documents of a run so far, each with its URL."""
    run = await store.get(run_id)
    names = await Results(database).names(run_id)
    there = await asyncio.to_thread(sizes, results_folder(settings.data_dir, run_id))
    start = 0 if cursor is None else int(cursor)
    path = results_path(run_id)
    return RunResults(
        run_id=run_id,
        results_path=path,
        error=run.results_error,
        items=[
            ResultItem(name=name, content_type=content_type(name), bytes=there.get(name), url=f"{path}/{name}")
            for name in names[start : start + limit]
        ],
        next_cursor=str(start + limit) if len(names) > start + limit else None,
    )


@router.get("/runs/{run_id}/results/{name}", response_class=StreamingResponse)
async def get_result(database: CurrentDatabase, run_id: RunId, name: ResultName) -> StreamingResponse:
    """Download one result document. Browsers save it as a file and never render what an agent wrote."""
    pieces = await Results(database).open(run_id, name)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(pieces, media_type=content_type(name), headers=headers)


@router.get("/runs/{run_id}/node-scores")
async def get_node_scores(queries: CurrentQueries, run_id: RunId, iteration: Iteration = None) -> NodeScores:
    """Get the node scores of a run after an iteration."""
    await queries.require_run(run_id)
    return node_scores(await queries.reflection(run_id, iteration))


@router.get("/runs/{run_id}/judge-calls")
async def list_judge_calls(
    queries: CurrentQueries, run_id: RunId, paging: ByNumber, iteration: OfIteration = None
) -> Page[JudgeCallOut]:
    """List the verdicts of judge models in a run, with what each cost."""
    await queries.require_run(run_id)
    calls = await queries.judge_calls(run_id, iteration=iteration, after=paging.after(-1), limit=paging.fetched)
    return paging.page(calls, JudgeCallOut.of, lambda row: row.id)


@router.get("/runs/{run_id}/verify")
async def verify_run(
    store: CurrentStore, heavy_reads: CurrentHeavyReads, settings: CurrentSettings, caller: CurrentCaller, run_id: RunId
) -> Verification:
    """Verify the figures of a run. Each is computed again from the stored trajectories and compared, bit for bit.

    So are those of its completed rejudgings, from their stored verdicts.
    """
    run = await store.get(run_id)
    return await heavy_reads.do(caller.namespace, lambda database: verify(database, settings.data_dir, run))


@router.post("/runs/{run_id}/judge-agreement")
async def compare_judges(
    store: CurrentStore,
    judging: CurrentJudging,
    settings: CurrentSettings,
    caller: CurrentCaller,
    run_id: RunId,
    request: AgreementRequest,
) -> Agreement:
    """Have two judges score stored rollouts of a run, and compare their verdicts. Nothing in the run changes.

    The response comes when both have judged. Verdicts of judge models are cached, so repeating it costs nothing.
    """
    run = await store.get(run_id)
    return await judging.do(caller.namespace, lambda database: agreement_of(database, settings, run, request))
