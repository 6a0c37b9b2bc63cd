"""Starts a new run from a checkpoint of another run."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Reflection, Run
from learnloop_service.app.domain.run_state import Verb
from learnloop_service.app.errors import Conflict, InvalidRequest, NotFound
from learnloop_service.app.operations.start.run import ForkOrigin, SaveReply, Started, start_run
from learnloop_service.app.operations.start.run_names import fork_name
from learnloop_service.app.runs.store import require_verb
from learnloop_service.app.schemas.run_request import ForkRequest, LearnLoopRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.training.protocol.model_name import ModelName

_HAD = ("warm_start", "first_scenario", "served", "served_iterations")
_PARTLY = ("environment", "evaluation", "train_options")
"""Fields that a fork can change in part. All other given fields replace the parent's as a whole."""


async def fork(
    service: HandlerResources, run_id: str, parent_id: str, request: ForkRequest, caller: Caller, save_reply: SaveReply
) -> Started:
    """Queue the fork as `run_id`. Raises NotFound, NotAllowed, Conflict, InvalidRequest or Unavailable."""
    database = service.database
    parent = await service.store.get(parent_id)
    require_verb(parent, Verb.FORK)
    checkpoint = await _checkpoint(database, parent, request.checkpoint)
    name = request.model.name or f"fork-{ULID()}".lower()
    await _require_new(database, parent, name)
    base = ModelName(parent.model_project, parent.model_name, checkpoint.step)
    model = {"project": base.project, "name": name, "base_model": str(base)}
    # a run that was stored without a seed of its held-out scenarios drew them by its own
    held_out = {"seed": parent.stored_request.config.held_out_seed, **parent.request.get("evaluation", {})}
    # nor did one that was stored without these fields replace groups or draw by difficulty
    prompt = parent.stored_request.prompt
    stored = {
        "replace_groups": False,
        "scenario_sampling": "passes",
        **parent.request,
        "evaluation": held_out,
        "prompt": prompt and prompt.sha256,
    }
    title = request.name or fork_name(request, parent, checkpoint.step)
    whole = LearnLoopRequest.model_validate({**_changed(stored, request), "model": model, "name": title})
    async with database() as tx:
        learned = await tx.get(Reflection, (parent_id, checkpoint.iteration))
    first_scenario = parent.stored_request.config.first_scenario
    forked = ForkOrigin(parent_id, checkpoint.step, learned, first_scenario)
    return await start_run(service, run_id, whole, caller, save_reply, forked)


async def _checkpoint(database: Database, parent: Run, step: int | None) -> Checkpoint:
    step = parent.best_step if step is None else step
    if step is None:
        raise Conflict(f"Run {parent.id} has no checkpoint yet; fork it after its baseline evaluation.")
    async with database() as tx:
        checkpoint = await tx.get(Checkpoint, (parent.id, step))
    if checkpoint is None:
        raise NotFound(f"Run {parent.id} has no checkpoint {step}.")
    if checkpoint.deleted_at is not None:
        raise Conflict(f"Checkpoint {step} of run {parent.id} was deleted.")
    return checkpoint


async def _require_new(database: Database, parent: Run, name: str) -> None:
    """Raise Conflict if the model exists, because it already has another base."""
    same = select(Run.id).where(
        Run.backend == parent.backend, Run.model_project == parent.model_project, Run.model_name == name
    )
    async with database() as tx:
        trainer_id = (await tx.execute(same.limit(1))).scalar_one_or_none()
    if trainer_id is not None:
        raise Conflict(
            f"A fork creates a new model, and run {trainer_id} trains {parent.model_project}/{name}; "
            "choose another name."
        )


def _changed(stored: Mapping[str, Any], request: ForkRequest) -> dict[str, Any]:
    """Return the parent's request with the changes of the fork, and without what the checkpoint has learned from.

    Raises InvalidRequest for another environment.
    """
    stored = {name: value for name, value in stored.items() if name not in _HAD}
    changes = request.model_dump(exclude_unset=True, exclude={"checkpoint", "model", "name"})
    for name in _PARTLY:
        if name in changes:
            changes[name] = {**stored.get(name, {}), **changes[name]}  # earlier versions stored no train_options
    if "environment" in changes and changes["environment"]["name"] != stored["environment"]["name"]:
        raise InvalidRequest(
            ("body", "environment", "name"),
            f"A fork must keep the environment of its parent, {stored['environment']['name']}.",
        )
    return {**stored, **changes}
