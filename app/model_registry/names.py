"""What a model's name means, to whom: the one place that turns a name into somewhere to sample from.

A name is a base model's, `PROJECT/NAME` (the newest checkpoint), `PROJECT/NAME@STEP`, a name that a checkpoint was
promoted to, or a run's id (its best checkpoint), also with `@STEP`. What is promoted comes before a model of that name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from app.auth.caller import Caller
from app.auth.tenancy import RUN, require, require_model
from app.db.tables import Run
from app.domain.names import MODEL_PATTERN, TINY_BASE
from app.errors import Conflict, NotFound, Unavailable
from app.model_registry.promotions import Promotions
from app.processes.engine import EngineUnavailable
from app.runs.configuration import model_spec
from app.service import Service
from training.backends import embedded
from training.backends.base import BackendRefused, BackendUnavailable, Endpoint

_STEP = re.compile(r"(?P<model>.+?)(?:@(?P<step>\d{1,9}))?")
_RUN_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


class UnknownModelName(NotFound):
    """Nobody is called so, or not for this caller."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no model {name!r}.")

    def members(self) -> Mapping[str, Any]:
        return {"code": "model_not_found", "param": "model"}


@dataclass(frozen=True, slots=True)
class Named:
    """A checkpoint by its name; `step` None: a base model, or whatever is newest."""

    endpoint: Endpoint
    step: int | None


async def resolve(service: Service, caller: Caller, name: str) -> Named:
    """Where the model of that name is sampled. Raises UnknownModelName, Conflict or Unavailable."""
    if name in base_models(service):
        return await _on_engine(service, name, None)
    match = _STEP.fullmatch(name)
    if match is None or not re.fullmatch(MODEL_PATTERN, name):
        raise UnknownModelName(name)
    model, step = match["model"], None if match["step"] is None else int(match["step"])
    if _RUN_ID.fullmatch(model):
        return await _of_run(service, caller, model, step)
    try:
        require_model(caller, model, ())
    except NotFound:
        raise UnknownModelName(name) from None
    project, _, own = model.partition("/")
    promoted = await Promotions(service.sessions).current(project, own) if step is None else None
    if promoted is not None:
        own, step = promoted.model_name, promoted.step
    run = await _trainer(service, project, own)
    if run is None or run.backend == embedded.NAME:
        return await _on_engine(service, f"{project}/{own}" if own else project, step)
    return await _elsewhere(service, run, step)


def base_models(service: Service) -> frozenset[str]:
    """The names of the models that everybody may use."""
    return frozenset({TINY_BASE, *service.settings.engine_base_models})


async def _of_run(service: Service, caller: Caller, run_id: str, step: int | None) -> Named:
    try:
        await require(service.sessions, caller, RUN, run_id)
        run = await service.store.get(run_id)
    except NotFound:
        raise UnknownModelName(run_id) from None
    step = run.best_step if step is None else step
    if step is None:
        raise Conflict(f"Run {run_id} has no checkpoint yet; retry after its baseline evaluation.")
    if run.backend == embedded.NAME:
        return await _on_engine(service, f"{run.model_project}/{run.model_name}", step)
    return await _elsewhere(service, run, step)


async def _trainer(service: Service, project: str, name: str) -> Run | None:
    """The newest run that trains the model; None for one that only the engine knows."""
    query = select(Run).where(Run.model_project == project, Run.model_name == name).order_by(Run.id.desc()).limit(1)
    async with service.sessions() as session:
        return (await session.execute(query)).scalar_one_or_none()


async def _on_engine(service: Service, model: str, step: int | None) -> Named:
    try:
        address = await service.engine.address()
    except EngineUnavailable as error:
        raise Unavailable(str(error)) from error
    at = "" if step is None else f"@{step}"
    return Named(Endpoint(f"{address.url}/v1", address.key, f"{model}{at}"), step)


async def _elsewhere(service: Service, run: Run, step: int | None) -> Named:
    """On a backend that is not our engine, which is asked what it calls the checkpoint."""
    try:
        backend = await service.connect(run.backend)
        try:
            policy = await backend.register(model_spec(run))
            return Named(policy.endpoint(step), step)
        finally:
            await backend.close()
    except (EngineUnavailable, BackendUnavailable, BackendRefused) as error:
        raise Unavailable(str(error)) from error
