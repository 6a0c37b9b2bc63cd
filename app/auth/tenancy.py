"""Restricts a project's key to what belongs to the project. Everything else appears not to exist.

Ids in paths are checked here before the handler runs. Handlers check the ids in request bodies.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import (
    AgentSession,
    EvaluationJob,
    Improvement,
    Release,
    Run,
    Schedule,
    Trajectory,
    WebhookDelivery,
    WebhookEndpoint,
)
from learnloop_service.app.errors import NotFound

_MOST_KNOWN = 10_000


class Owned(NamedTuple):
    """A kind of object that belongs to a project."""

    called: str
    id: Any
    """The column of its id."""
    project: Select[str | None]


RUN = Owned("run", Run.id, select(Run.model_project))
TRAJECTORY = Owned(
    "trajectory",
    Trajectory.id,
    select(func.coalesce(Run.model_project, Trajectory.project)).select_from(Trajectory).outerjoin(Run),
)
WEBHOOK = Owned("webhook", WebhookEndpoint.id, select(WebhookEndpoint.project))
EVALUATION = Owned("evaluation", EvaluationJob.id, select(EvaluationJob.project))
AGENT_SESSION = Owned("session", AgentSession.id, select(AgentSession.project))
RELEASE = Owned("release", Release.id, select(Release.project))
DELIVERY = Owned("delivery", WebhookDelivery.id, select(WebhookDelivery.project))
IMPROVEMENT = Owned("improvement", Improvement.id, select(Improvement.project))
SCHEDULE = Owned("schedule", Schedule.id, select(Schedule.project))
OWNED: Mapping[str, Owned] = {
    "/runs/": RUN,
    "/trajectories/": TRAJECTORY,
    "/evaluations/": EVALUATION,
    "/releases/": RELEASE,
    "/webhooks/deliveries/": DELIVERY,
    "/webhooks/": WEBHOOK,
    "/sessions/": AGENT_SESSION,
    "/improvements/": IMPROVEMENT,
    "/schedules/": SCHEDULE,
}
"""The kind of object that a path's first parameter identifies, by the beginning of the path. The first match counts."""


class KnownRuns:
    """Remembers the projects of runs, which never change. A request for a deleted run finds nothing in any case."""

    def __init__(self) -> None:
        self._found: set[tuple[str, str]] = set()

    def has(self, project: str, run_id: str) -> bool:
        """Whether the run was found in the project before."""
        return (project, run_id) in self._found

    def add(self, project: str, run_id: str) -> None:
        """Remember a run. If there are too many, forget all others."""
        if len(self._found) >= _MOST_KNOWN:
            self._found.clear()
        self._found.add((project, run_id))


async def require(database: Database, caller: Caller, owned: Owned, id: str) -> None:
    """Raise NotFound unless it belongs to the caller's project, with the same error as if it did not exist."""
    if caller.project is None:
        return
    project = None
    if "\x00" not in id:  # Postgres cannot store such text
        async with database() as tx:
            project = (await tx.execute(owned.project.where(owned.id == id))).scalar_one_or_none()
    if project != caller.project:
        raise NotFound(f"There is no {owned.called} {id!r}.")
