"""Rejudgings: score a run's stored rollouts by another judge, and see what that would have changed."""

from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentQueries, CurrentService, CurrentStore, RunId
from learnloop_service.app.api.engine import CurrentEvaluations
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.presentation import evaluation_figures
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.http import idempotency
from learnloop_service.app.operations.start.evaluation import StartedEvaluation
from learnloop_service.app.operations.start.rejudging import Planned, RejudgingStarter
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.rejudgings import RejudgeRequest, RejudgingAccepted, RejudgingBrief

router = keyed_router("runs")


@router.post("/runs/{run_id}/rejudge", status_code=202)
async def post_rejudging(
    store: CurrentStore, evaluations: CurrentEvaluations, caller: CurrentCaller, run_id: RunId, request: RejudgeRequest
) -> RejudgingAccepted:
    """Score stored rollouts of a run again, in the background. The run's own scores stay as they are.

    The rejudging is an evaluation; poll it until it has ended.
    """
    run = await store.get(run_id)
    starter = RejudgingStarter(evaluations)
    planned = await starter.plan(run, request)
    if request.dry_run:
        return _accepted(planned)

    async def save(tx: AsyncSession, started: StartedEvaluation) -> None:
        await idempotency.complete(tx, status=202, reply=_accepted(planned, started))

    return _accepted(planned, await starter.start(str(ULID()), run, request, planned, caller, save))


@router.get("/runs/{run_id}/rejudgings")
async def list_rejudgings(
    service: CurrentService, queries: CurrentQueries, run_id: RunId, paging: ById
) -> Page[RejudgingBrief]:
    """List the rejudgings of a run, newest first."""
    await queries.require_run(run_id)
    store = EvaluationStore(service.database)
    jobs = await store.listed(before=paging.cursor, limit=paging.fetched, run_id=run_id)
    return paging.page(jobs, _brief, lambda row: row.id)


def _accepted(planned: Planned, started: StartedEvaluation | None = None) -> RejudgingAccepted:
    return RejudgingAccepted(
        evaluation_id=started.job.id if started else None,
        groups=planned.groups,
        rollouts=planned.rejudge.rollouts,
        verdicts=planned.verdicts,
        cost=planned.cost,
        warnings=list(started.warnings) if started else [],
    )


def _brief(job: EvaluationJob) -> RejudgingBrief:
    more = {
        "judge": job.request["judge"]["name"],
        "repeats": job.request["rejudge"]["repeats"],
        "text": job.report["rejudge"]["text"] if job.report else None,
    }
    return RejudgingBrief.model_validate(evaluation_figures(job) | more)
