"""Makes a new run that goes on from a run's checkpoint."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from ulid import ULID

from app.db.tables import Checkpoint, Reflection, Run
from app.domain.run_state import Verb
from app.errors import Conflict, InvalidRequest, NotFound
from app.operations.start_run import MakeReply, Parent, Reply, accept
from app.runs.store import require_verb
from app.schemas.runs import ForkRequest, LearnLoopRequest
from app.service import Service
from training.model_name import ModelName

_PARTLY = ("environment", "evaluation")
"""Of these, what is given changes and the rest stays; everything else is replaced as a whole."""


async def fork(service: Service, run_id: str, request: ForkRequest, reply: MakeReply[Reply], actor: str) -> Reply:
    """What its sender is told of the new run. Raises NotFound, NotAllowed, Conflict, InvalidRequest or Unavailable."""
    parent = await service.store.get(run_id)
    require_verb(parent, Verb.FORK)
    checkpoint = await _checkpoint(service, parent, request.checkpoint)
    name = request.model.name or f"fork-{ULID()}".lower()
    await _require_new(service, parent, name)
    base = ModelName(parent.model_project, parent.model_name, checkpoint.step)
    model = {"project": base.project, "name": name, "base_model": str(base)}
    whole = LearnLoopRequest.model_validate({**_changed(parent.request, request), "model": model})
    async with service.sessions() as session:
        learned = await session.get(Reflection, (run_id, checkpoint.iteration))
    return await accept(service, whole, reply, actor, Parent(run_id, checkpoint.step, learned))


async def _checkpoint(service: Service, parent: Run, step: int | None) -> Checkpoint:
    step = parent.best_step if step is None else step
    if step is None:
        raise Conflict(f"Run {parent.id} has no checkpoint yet; fork it after its baseline evaluation.")
    async with service.sessions() as session:
        found = await session.get(Checkpoint, (parent.id, step))
    if found is None:
        raise NotFound(f"Run {parent.id} has no checkpoint {step}.")
    if found.deleted_at is not None:
        raise Conflict(f"Checkpoint {step} of run {parent.id} was deleted.")
    return found


async def _require_new(service: Service, parent: Run, name: str) -> None:
    """A model that is there has a base of its own. Raises Conflict."""
    same = select(Run.id).where(
        Run.backend == parent.backend, Run.model_project == parent.model_project, Run.model_name == name
    )
    async with service.sessions() as session:
        taken = (await session.execute(same.limit(1))).scalar_one_or_none()
    if taken is not None:
        raise Conflict(
            f"A fork creates a new model, and run {taken} trains {parent.model_project}/{name}; choose another name."
        )


def _changed(stored: Mapping[str, Any], request: ForkRequest) -> dict[str, Any]:
    """The parent's request with what the fork changes. Raises InvalidRequest for another environment."""
    given = request.model_dump(exclude_unset=True, exclude={"checkpoint", "model"})
    for name in _PARTLY:
        if name in given:
            given[name] = {**stored[name], **given[name]}
    if "environment" in given and given["environment"]["name"] != stored["environment"]["name"]:
        raise InvalidRequest(
            ("body", "environment", "name"),
            f"A fork must keep the environment of its parent, {stored['environment']['name']}.",
        )
    return {**stored, **given}
