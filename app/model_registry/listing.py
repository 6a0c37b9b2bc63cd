"""The models that a caller may sample, as OpenAI's clients list them."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on

from app.auth.caller import Caller
from app.db.tables import Run
from app.model_registry.engine_client import EngineClient
from app.model_registry.names import UnknownModelName, base_models
from app.model_registry.promotions import Promotions
from app.service import Service
from training.backends import embedded

Json = Any


async def listed(service: Service, engine: EngineClient, caller: Caller) -> list[dict[str, Json]]:
    """Base models, models and promoted names, in this order. Raises Unavailable."""
    bases = base_models(service)
    found = [
        {**each, "backend": embedded.NAME}
        for each in await engine.models()
        if each["id"] in bases or caller.sees(each["id"].partition("/")[0])
    ]
    found += await _elsewhere(service, caller)
    return found + [
        {
            "id": f"{each.project}/{each.name}",
            "object": "model",
            "created": int(each.created_at.timestamp()),
            "owned_by": each.project,
            "backend": each.backend,
            "promoted": f"{each.project}/{each.model_name}@{each.step}",
        }
        for each in await Promotions(service.sessions).all(caller.project)
    ]


async def one(service: Service, engine: EngineClient, caller: Caller, name: str) -> dict[str, Json]:
    """The model of that name, or of that checkpoint. Raises UnknownModelName or Unavailable."""
    model, _, step = name.partition("@")
    for each in reversed(await listed(service, engine, caller)):
        if each["id"] == name:
            return each
        if each["id"] == model and step.isdecimal() and int(step) in each.get("steps", (int(step),)):
            return {**each, "id": name, "step": int(step)}
    raise UnknownModelName(name)


async def _elsewhere(service: Service, caller: Caller) -> list[dict[str, Json]]:
    """What runs trained on other backends; the newest run of a model counts."""
    names = (Run.backend, Run.model_project, Run.model_name)
    query = select(Run).where(Run.backend != embedded.NAME, Run.step.is_not(None))
    if caller.project is not None:
        query = query.where(Run.model_project == caller.project)
    query = query.ext(distinct_on(*names)).order_by(*names, Run.id.desc())
    async with service.sessions() as session:
        runs = (await session.execute(query)).scalars().all()
    return [
        {
            "id": f"{run.model_project}/{run.model_name}",
            "object": "model",
            "created": int(run.created_at.timestamp()),
            "owned_by": run.model_project,
            "backend": run.backend,
            "base_model": run.base_model,
            "step": run.step,
        }
        for run in runs
    ]
