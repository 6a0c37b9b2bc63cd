"""Tasks for agents that pull their work: claim a task, send heartbeats, release it."""

import asyncio
import time

from fastapi import Request, Response

from learnloop_service.app.agent_sessions.tasks import AgentTasks, ClaimedTask
from learnloop_service.app.api.dependencies import CurrentCaller, CurrentDatabase, ServiceUrl
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.api.session_models import SessionId
from learnloop_service.app.schemas.agent_tasks import (
    ClaimOut,
    ClaimRequest,
    HeartbeatOut,
    HeartbeatRequest,
    ReleaseRequest,
    TaskSession,
)

router = keyed_router("sessions")
_LOOK_EVERY_S = 0.5


@router.post("/sessions/claims", response_model=ClaimOut, responses={204: {"description": "There is no task now"}})
async def claim_task(
    http: Request, service_url: ServiceUrl, database: CurrentDatabase, caller: CurrentCaller, request: ClaimRequest
) -> ClaimOut | Response:
    """Claim the oldest task that waits for an agent. 204 if there is none.

    Tasks come from runs of the environment `agent` whose runner is `pull`. End each with `POST /sessions/{id}/outcome`.
    """
    tasks, until = AgentTasks(database), time.monotonic() + request.wait_s
    while True:
        if (claimed := await tasks.claim(caller, request.run_id, request.worker, request.lease_s)) is not None:
            return _claim(claimed, service_url)
        if (left_s := until - time.monotonic()) <= 0 or await http.is_disconnected():
            return Response(status_code=204)
        await asyncio.sleep(min(_LOOK_EVERY_S, left_s))


@router.post("/sessions/{id}/heartbeat")
async def renew_claim(
    database: CurrentDatabase, caller: CurrentCaller, id: SessionId, request: HeartbeatRequest
) -> HeartbeatOut:
    """Renew the claim of a task. 409 if another worker has it, or its session is over: stop working on it."""
    return HeartbeatOut(renew_by=await AgentTasks(database).heartbeat(caller, id, request.attempt, request.lease_s))


@router.post("/sessions/{id}/release", status_code=204)
async def release_claim(
    database: CurrentDatabase, caller: CurrentCaller, id: SessionId, request: ReleaseRequest
) -> None:
    """Give a claimed task back. 409 if another worker has it, or its session is over."""
    await AgentTasks(database).release(caller, id, request.attempt, request.reason)


def _claim(claimed: ClaimedTask, service_url: str) -> ClaimOut:
    base_url = f"{service_url}/sessions/{claimed.session_id}/v1"
    access = TaskSession(id=claimed.session_id, base_url=base_url, api_key=claimed.api_key, model=claimed.model)
    return ClaimOut(
        session=access,
        **{**claimed.task, "run_id": claimed.run_id},
        attempt=claimed.attempt,
        deadline=claimed.deadline,
        renew_by=claimed.lease_until,
    )
