"""Starting a learn-loop."""

from fastapi import APIRouter

from app.api.dependencies import CurrentCaller, CurrentService
from app.api.large_bodies import BigBodyRoute, LearnLoopBody
from app.api.ownership import in_project
from app.api.presentation import accepted
from app.operations.start_run import accept
from app.schemas import runs as schemas

router = APIRouter(tags=["runs"], route_class=BigBodyRoute)


@router.post("/learn-loop", status_code=202)
async def post_learn_loop(
    service: CurrentService, caller: CurrentCaller, request: LearnLoopBody
) -> schemas.LearnLoopAccepted:
    """Start a learn-loop in the background. Follow its progress at the returned links."""
    return await accept(service, in_project(request, caller), accepted, caller.actor)
