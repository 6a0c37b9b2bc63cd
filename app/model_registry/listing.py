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
from learnloop_service.training.backends.registry import engine_backend
from learnloop_service.training.protocol.model_name import ModelName


async def listed(
    database: Database, base_models: Collection[str], engine: EngineClient, caller: Caller
) -> list[dict[str, Json]]:
    """Return base models, then models, then promoted names. Raises Unavailable."""
    models = [
        {**model, "backend": engine_backend()}
        for model in await engine.models()
        if model["id"] in base_models or _is_visible(caller, model["id"])
    ]
    models += await _other_backends(database, caller)
    return models + [
        {
            "id": str(ModelName(promotion.project, promotion.name)),
            "object": "model",
            "created": int(promotion.created_at.timestamp()),
            "owned_by": promotion.project,
            "backend": promotion.backend,
            "promoted": str(ModelName(promotion.project, promotion.model_name, promotion.step)),
        }
        for promotion in await Promotions(database).all(caller.project)
    ]


async def one(
    database: Database, models: ModelResolver, engine: EngineClient, caller: Caller, name: str
) -> dict[str, Json]:
    """Return the model that a name stands for: a model, a checkpoint, or the checkpoint of a run.

    Raises UnknownModelName, Unavailable, or Conflict for a run that has no checkpoint yet.
    """
    catalogue = await listed(database, models.base_models, engine, caller)
    for model in reversed(catalogue):  # promoted names come last and take precedence over models of the same name
        if model["id"] == name:
            return model
    try:
        checkpoint = ModelName.parse((await models.resolve(caller, name)).name)
    except ValueError:
        raise UnknownModelName(name) from None
    for model in catalogue:
        steps = model.get("steps", (checkpoint.step,))  # other backends do not list their steps
        if model["id"] == str(checkpoint.at(None)) and "promoted" not in model and checkpoint.step in steps:
            return {**model, "id": name, "step": checkpoint.step}
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
    query = select(Run).where(Run.backend != engine_backend(), Run.step.is_not(None))
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
