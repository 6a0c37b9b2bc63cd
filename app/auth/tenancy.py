"""A project's key finds only what belongs to its project; all else is as if it did not exist.

Whatever a path names by id is looked at here, before its handler runs. Handlers see to what their bodies name.
"""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from fastapi import Request
from sqlalchemy import Select, func, select

from app.api.dependencies import CurrentCaller, CurrentService
from app.auth.caller import Caller
from app.auth.scopes import route_path
from app.db.session import Sessions
from app.db.tables import Run, Trajectory, WebhookDelivery, WebhookEndpoint
from app.errors import Forbidden, NotFound
from app.schemas.runs import LearnLoopRequest

_MOST_KNOWN = 10_000


class Owned(NamedTuple):
    """Something that belongs to a project."""

    called: str
    id: Any
    """Its column."""
    project: Select[str | None]


RUN = Owned("run", Run.id, select(Run.model_project))
TRAJECTORY = Owned(
    "trajectory",
    Trajectory.id,
    select(func.coalesce(Run.model_project, Trajectory.project)).select_from(Trajectory).outerjoin(Run),
)
WEBHOOK = Owned("webhook", WebhookEndpoint.id, select(WebhookEndpoint.project))
DELIVERY = Owned("delivery", WebhookDelivery.id, select(Run.model_project).join(WebhookDelivery))
OWNED: Mapping[str, Owned] = {
    "/runs/": RUN,
    "/trajectories/": TRAJECTORY,
    "/webhooks/deliveries/": DELIVERY,
    "/webhooks/": WEBHOOK,
}
"""What the first parameter of a path that begins so is the id of; the first one that fits counts."""


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


class KnownRuns:
    """Which runs were found to be of which project. That never changes, and of a deleted one nothing is found."""

    def __init__(self) -> None:
        self._found: set[tuple[str, str]] = set()

    def has(self, project: str, run_id: str) -> bool:
        """Whether it was found before."""
        return (project, run_id) in self._found

    def add(self, project: str, run_id: str) -> None:
        """Remember one, and from time to time forget all."""
        if len(self._found) >= _MOST_KNOWN:
            self._found.clear()
        self._found.add((project, run_id))


async def require(sessions: Sessions, caller: Caller, owned: Owned, id: str) -> None:
    """Raises NotFound if that is not the caller's: the same as if it did not exist."""
    if caller.project is None:
        return
    project = None
    if "\x00" not in id:  # Postgres has no such text
        async with sessions() as session:
            project = (await session.execute(owned.project.where(owned.id == id))).scalar_one_or_none()
    if project != caller.project:
        raise NotFound(f"there is no {owned.called} {id!r}")


def in_project(request: LearnLoopRequest, caller: Caller) -> LearnLoopRequest:
    """The learn-loop in the caller's project, which is the default there. Raises Forbidden if it names another."""
    if caller.project is None:
        return request
    if request.model.project not in (None, caller.project):
        raise Forbidden(f"the API key is for the project {caller.project}: body.model.project may name no other")
    model = request.model.model_copy(update={"project": caller.project})
    return request.model_copy(update={"model": model})


def require_model(caller: Caller, model: str, base_models: Container[str]) -> None:
    """A model by name is a base model or PROJECT/NAME. Raises NotFound if its project is not the caller's."""
    project, _, name = model.partition("/")
    # A name without a project could be any project's; only who sees all of them may use one.
    whole = bool(name) or caller.project is None
    if model not in base_models and not (whole and caller.sees(project) and "/" not in name):
        raise NotFound(f"there is no model {model!r}")
