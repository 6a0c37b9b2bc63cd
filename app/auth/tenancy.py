"""The key of a project only sees what belongs to the project; everything else is as if it did not exist.

Whatever a path names by id is looked at here, before its handler runs. Handlers see to what their bodies name.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from app.auth.caller import Caller
from app.db.database import Database
from app.db.tables import AgentSession, EvaluationJob, Run, Trajectory, WebhookDelivery, WebhookEndpoint
from app.errors import NotFound

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
EVALUATION = Owned("evaluation", EvaluationJob.id, select(EvaluationJob.project))
AGENT_SESSION = Owned("session", AgentSession.id, select(AgentSession.project))
DELIVERY = Owned("delivery", WebhookDelivery.id, select(WebhookDelivery.project))
OWNED: Mapping[str, Owned] = {
    "/runs/": RUN,
    "/trajectories/": TRAJECTORY,
    "/evaluations/": EVALUATION,
    "/webhooks/deliveries/": DELIVERY,
    "/webhooks/": WEBHOOK,
    "/sessions/": AGENT_SESSION,
}
"""What the first parameter of a path that begins so is the id of; the first one that fits counts."""


class KnownRuns:
    """Remembers which project a run belongs to. This never changes, and a deleted run is not found anyway."""

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


async def require(database: Database, caller: Caller, owned: Owned, id: str) -> None:
    """Raises NotFound if it is not the caller's, exactly as if it did not exist."""
    if caller.project is None:
        return
    project = None
    if "\x00" not in id:  # Postgres has no such text
        async with database() as tx:
            project = (await tx.execute(owned.project.where(owned.id == id))).scalar_one_or_none()
    if project != caller.project:
        raise NotFound(f"There is no {owned.called} {id!r}.")
