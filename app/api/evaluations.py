"""Evaluations: start, list, inspect, cancel, resume and delete them."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query, Response
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentService
from learnloop_service.app.api.engine import CurrentEvaluations
from learnloop_service.app.api.pages import ById, ByNumber, StartedBy
from learnloop_service.app.api.presentation import evaluation_accepted, evaluation_brief, evaluation_figures
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import RejudgingEvaluation, parse_evaluation
from learnloop_service.app.errors import Conflict
from learnloop_service.app.evaluations import rendering
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.http import idempotency
from learnloop_service.app.operations.start.evaluation import StartedEvaluation, check_new_budget
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.evaluations import (
    EvaluationAccepted,
    EvaluationBrief,
    EvaluationEventOut,
    EvaluationOut,
    EvaluationRequest,
    ResumeEvaluation,
)
from learnloop_service.app.schemas.trajectories import TrajectoryBrief

router = keyed_router("evaluations")

EvaluationId = Annotated[str, Path(max_length=64, pattern=NO_NUL, description="Id of the evaluation")]


async def _store(service: CurrentService) -> EvaluationStore:
    return EvaluationStore(service.database)


CurrentStore = Annotated[EvaluationStore, Depends(_store)]


@router.post("/evaluations", status_code=202)
async def post_evaluation(
    starter: CurrentEvaluations, caller: CurrentCaller, request: EvaluationRequest
) -> EvaluationAccepted:
    """Start an evaluation in the background. Poll it until it has ended."""
    return evaluation_accepted(await starter.start(str(ULID()), request, caller, save_evaluation_reply))


async def save_evaluation_reply(tx: AsyncSession, started: StartedEvaluation) -> None:
    """Save the response to a request that starts an evaluation, in case the request is repeated."""
    await idempotency.complete(tx, status=202, reply=evaluation_accepted(started))


@router.get("/evaluations")
async def list_evaluations(
    store: CurrentStore, caller: CurrentCaller, paging: ById, started_by: StartedBy = None
) -> Page[EvaluationBrief]:
    """List evaluations, newest first. What-ifs are listed with their trajectory, rejudgings with
    their run."""
    whose = {"project": caller.project, "started_by": started_by}
    jobs = await store.listed(before=paging.cursor, limit=paging.fetched, **whose)
    return paging.page(jobs, evaluation_brief, lambda row: row.id)


@router.get("/evaluations/{evaluation_id}")
async def get_evaluation(store: CurrentStore, evaluation_id: EvaluationId) -> EvaluationOut:
    """Get an evaluation. Shows its progress, and its figures once it has completed."""
    return _whole(await store.get(evaluation_id))


@router.get(
    "/evaluations/{evaluation_id}/report",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {}, "image/svg+xml": {}}, "description": "The report."}},
)
async def get_report(
    store: CurrentStore,
    evaluation_id: EvaluationId,
    form: Annotated[
        Literal["markdown", "svg"], Query(description="A text with tables, or a plot of the success of each model")
    ] = "markdown",
) -> Response:
    """Download the report of a completed evaluation, as Markdown or as a plot."""
    job = await store.get(evaluation_id)
    if job.report is None:
        raise Conflict(f"Evaluation {job.id} has no report: it is {job.status}.")
    if isinstance(parse_evaluation(job.request), RejudgingEvaluation):
        raise Conflict(f"Evaluation {job.id} judged stored rollouts again, so it compares no models.")
    render, media_type, ending = {
        "markdown": (rendering.markdown, "text/markdown", "md"),
        "svg": (rendering.svg, "image/svg+xml", "svg"),
    }[form]
    headers = {
        # The browser must save it as a file, because labels are arbitrary text from users.
        "Content-Disposition": f'attachment; filename="{job.id}.{ending}"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(render(job.id, job.report), media_type=media_type, headers=headers)


@router.get("/evaluations/{evaluation_id}/trajectories")
async def list_evaluation_trajectories(
    store: CurrentStore, evaluation_id: EvaluationId, paging: ByNumber
) -> Page[TrajectoryBrief]:
    """List the trajectories of an evaluation, oldest first. Their messages are left out."""
    await store.get(evaluation_id)
    trajectories = await store.trajectories(evaluation_id, after=paging.after(-1), limit=paging.fetched)
    return paging.page(trajectories, TrajectoryBrief.of, lambda row: row.seq)


@router.get("/evaluations/{evaluation_id}/events")
async def list_evaluation_events(
    store: CurrentStore, evaluation_id: EvaluationId, paging: ByNumber
) -> Page[EvaluationEventOut]:
    """List the events of an evaluation in order."""
    await store.get(evaluation_id)
    events = await store.events(evaluation_id, after=paging.after(), limit=paging.fetched)
    return paging.page(events, EvaluationEventOut.of, lambda row: row.seq)


@router.post("/evaluations/{evaluation_id}/cancel", status_code=202)
async def cancel_evaluation(
    service: CurrentService, store: CurrentStore, caller: CurrentCaller, evaluation_id: EvaluationId
) -> EvaluationBrief:
    """Cancel an evaluation. Finished rollouts are kept; resume it to go on."""
    await store.cancel(evaluation_id, caller.actor)
    service.runner.nudge(evaluation_id)
    return evaluation_brief(await store.get(evaluation_id))


@router.post("/evaluations/{evaluation_id}/resume", status_code=202)
async def resume_evaluation(
    service: CurrentService,
    store: CurrentStore,
    caller: CurrentCaller,
    evaluation_id: EvaluationId,
    request: ResumeEvaluation | None = None,
) -> EvaluationBrief:
    """Resume an evaluation that is paused, failed or was cancelled. No finished rollout is repeated.

    If its budget is used up, give a higher one.
    """
    budget = request.budget.model_dump(exclude_unset=True) if request and request.budget else None
    async with service.database() as tx:
        job = await tx.get(EvaluationJob, evaluation_id)
    if job is not None:
        stored = parse_evaluation(job.request)
        prompted = [contestant.model for contestant in stored.models if contestant.kind == "prompted"]
        check_new_budget(budget, stored.judge, prompted, service.settings)
    await store.resume(evaluation_id, caller.actor, budget)
    service.runner.wake()
    return evaluation_brief(await store.get(evaluation_id))


@router.delete("/evaluations/{evaluation_id}")
async def delete_evaluation(store: CurrentStore, evaluation_id: EvaluationId) -> EvaluationBrief:
    """Delete an evaluation that has ended, and return what it was. Its trajectories are deleted, too."""
    return evaluation_brief(await store.delete(evaluation_id))


def _whole(job: EvaluationJob) -> EvaluationOut:
    more = {"request": job.request, "wait_reason": job.wait_reason, "judge_cost": job.judge, "report": job.report}
    more |= {"pruned": job.pruned, "weave": _published(job)}
    return EvaluationOut.model_validate(evaluation_figures(job) | more)


def _published(job: EvaluationJob) -> dict[str, Any] | None:
    names = ("state", "urls", "error")
    return None if job.published is None else {name: job.published.get(name) for name in names}
