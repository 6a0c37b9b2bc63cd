"""The models that a caller can sample, in the format of OpenAI's API."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.model_registry.resolver import ModelResolver, UnknownModelName
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends import embedded
from learnloop_service.training.protocol.model_name import ModelName


async def listed(
    database: Database, base_models: Collection[str], engine: EngineClient, caller: Caller
) -> list[dict[str, Json]]:
    """Return base models, then models, then promoted names. Raises Unavailable."""
    found = [
        {**each, "backend": embedded.NAME}
        for each in await engine.models()
        if each["id"] in base_models or _is_visible(caller, each["id"])
    ]
    found += await _other_backends(database, caller)
    return found + [
        {
            "id": str(ModelName(each.project, each.name)),
            "object": "model",
            "created": int(each.created_at.timestamp()),
            "owned_by": each.project,
            "backend": each.backend,
            "promoted": str(ModelName(each.project, each.model_name, each.step)),
        }
        for each in await Promotions(database).all(caller.project)
    ]


async def one(
    database: Database, models: ModelResolver, engine: EngineClient, caller: Caller, name: str
) -> dict[str, Json]:
    """Return the model that a name stands for: a model, a checkpoint, or the checkpoint of a run.

    Raises UnknownModelName, Unavailable, or Conflict for a run that has no checkpoint yet.
    """
    found = await listed(database, models.base_models, engine, caller)
    for each in reversed(found):  # promoted names come last and take precedence over models of the same name
        if each["id"] == name:
            return each
    try:
        checkpoint = ModelName.parse((await models.resolve(caller, name)).name)
    except ValueError:
        raise UnknownModelName(name) from None
    for each in found:
        steps = each.get("steps", (checkpoint.step,))  # other backends do not list their steps
        if each["id"] == str(checkpoint.at(None)) and "promoted" not in each and checkpoint.step in steps:
            return {**each, "id": name, "step": checkpoint.step}
    raise UnknownModelName(name)


def _is_visible(caller: Caller, name: str) -> bool:
    """Return whether the caller can see the engine's model. Callers for all projects see even base models that are not
    offered."""
    try:
        return caller.sees(ModelName.parse(name).project)
    except ValueError:
        return caller.project is None


async def _other_backends(database: Database, caller: Caller) -> list[dict[str, Json]]:
    """Return the models that runs trained on other backends, each in the state of its newest run."""
    names = (Run.backend, Run.model_project, Run.model_name)
    query = select(Run).where(Run.backend != embedded.NAME, Run.step.is_not(None))
    if caller.project is not None:
        query = query.where(Run.model_project == caller.project)
    query = query.ext(distinct_on(*names)).order_by(*names, Run.id.desc())
    async with database() as tx:
        runs = (await tx.execute(query)).scalars().all()
    return [
        {
            "id": str(ModelName(run.model_project, run.model_name)),
            "object": "model",
            "created": int(run.created_at.timestamp()),
            "owned_by": run.model_project,
            "backend": run.backend,
            "base_model": run.base_model,
            "step": run.step,
        }
        for run in runs
    ]
