"""Keeps callers within their project: checks the objects in paths and the project of a new learn-loop."""

from fastapi import Request

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.scopes import route_path
from learnloop_service.app.auth.tenancy import OWNED, RUN, KnownRuns, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.errors import Forbidden
from learnloop_service.app.schemas.run_request import LearnLoopRequest


async def own_only(request: Request) -> None:
    """Raise NotFound if the object in the path belongs to another project. A dependency of every route."""
    # These are not parameters, because FastAPI does more work for each parameter than this function does.
    caller: Caller = request.state.caller
    if caller.project is None or caller.agent is not None or not request.path_params:
        return  # an agent reaches only its session, whose id was compared with the path
    path = route_path(request.scope)
    owned = next((owned for begin, owned in OWNED.items() if path.startswith(begin)), None)
    if owned is None:
        return
    database: Database = request.app.state.service.database
    id = next(iter(request.path_params.values()))
    known_runs: KnownRuns = request.app.state.known_runs
    if owned is not RUN:
        await require(database, caller, owned, id)
    elif not known_runs.has(caller.project, id):
        await require(database, caller, owned, id)
        known_runs.add(caller.project, id)


def in_project(request: LearnLoopRequest, caller: Caller) -> LearnLoopRequest:
    """Return the learn-loop with the caller's project. Raises Forbidden if it names another one."""
    if caller.project is None:
        return request
    if request.model.project not in (None, caller.project):
        raise Forbidden(f"This API key belongs to project {caller.project}; body.model.project cannot be another one.")
    model = request.model.model_copy(update={"project": caller.project})
    return request.model_copy(update={"model": model})
