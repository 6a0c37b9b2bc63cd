"""Dependencies that keep a caller within its project: what a path names, and what a learn-loop asks for."""

from fastapi import Request

from app.api.dependencies import CurrentCaller, CurrentService
from app.auth.caller import Caller
from app.auth.scopes import route_path
from app.auth.tenancy import OWNED, RUN, KnownRuns, require
from app.errors import Forbidden
from app.schemas.runs import LearnLoopRequest


async def own_only(request: Request, service: CurrentService, caller: CurrentCaller) -> None:
    """Dependency of every route. Raises NotFound for what the path names if it is not the caller's."""
    path = route_path(request.scope)
    owned = next((owned for begin, owned in OWNED.items() if path.startswith(begin)), None)
    if owned is None or caller.project is None or not request.path_params:
        return
    id = next(iter(request.path_params.values()))
    known: KnownRuns = request.app.state.known_runs
    if owned is not RUN:
        await require(service.sessions, caller, owned, id)
    elif not known.has(caller.project, id):
        await require(service.sessions, caller, owned, id)
        known.add(caller.project, id)


def in_project(request: LearnLoopRequest, caller: Caller) -> LearnLoopRequest:
    """The learn-loop in the caller's project, which is the default there. Raises Forbidden if it names another."""
    if caller.project is None:
        return request
    if request.model.project not in (None, caller.project):
        raise Forbidden(f"the API key is for the project {caller.project}: body.model.project may name no other")
    model = request.model.model_copy(update={"project": caller.project})
    return request.model_copy(update={"model": model})
