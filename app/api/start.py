"""Starts a learn-loop."""

from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.large_bodies import BigBodyRoute, LearnLoopBody
from learnloop_service.app.api.ownership import in_project
from learnloop_service.app.api.presentation import accepted, planned
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.http import idempotency
from learnloop_service.app.operations.start.run import SaveReply, Started, planned_run, start_run
from learnloop_service.app.schemas.runs import LearnLoopAccepted, LearnLoopPlan

router = keyed_router("runs", route_class=BigBodyRoute)


@router.post("/learn-loop", status_code=202)
async def post_learn_loop(service: CurrentService, caller: CurrentCaller, request: LearnLoopBody) -> LearnLoopAccepted:
    """Start a learn-loop in the background. Follow its progress at the returned links."""
    run_id = str(ULID())
    save = saved_reply(run_id, has_webhooks=bool(request.webhooks))
    started = await start_run(service, run_id, in_project(request, caller), caller, save)
    return accepted(run_id, started)


@router.post("/learn-loop/plan")
async def plan_learn_loop(service: CurrentService, caller: CurrentCaller, request: LearnLoopBody) -> LearnLoopPlan:
    """Say what a learn-loop would do, take and cost; start nothing. Checks it as `POST /learn-loop` does."""
    _, _, started = await planned_run(service, str(ULID()), in_project(request, caller), caller)
    return planned(started)


def saved_reply(run_id: str, *, has_webhooks: bool) -> SaveReply:
    """Return a function that saves the response to a request that starts a run, in case the request is repeated. The
    response is known before the run is created, except for secrets of webhooks: a response with secrets is not saved.
    """

    async def save(tx: AsyncSession, started: Started) -> None:
        await idempotency.complete(tx, status=202, reply=accepted(run_id, started), has_secret=has_webhooks)

    return save
