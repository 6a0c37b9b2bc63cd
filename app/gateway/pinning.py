"""Pins a session to the checkpoint that a name refers to when the session is opened."""

from dataclasses import replace

from learnloop_service.app.agent_sessions.store import PinnedModel
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.errors import Conflict, NotFound
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.resolver import ModelResolver, ResolvedModel, UnknownModelName
from learnloop_service.app.releases.exposures import failure_recorded
from learnloop_service.app.releases.split import Requester
from learnloop_service.training.backends import embedded
from learnloop_service.training.protocol.model_name import ModelName


async def pinned(
    models: ModelResolver, engine: EngineClient, caller: Caller, name: str, requester: Requester | None = None
) -> PinnedModel:
    """Return the checkpoint that a name refers to now, for that requester if a release divides its requests. Later
    training or promotion does not change it.

    Raises UnknownModelName (also if the checkpoint is gone), Conflict if the run has no checkpoint yet, and
    Unavailable.
    """
    found = await models.resolve(caller, name, requester)
    async with failure_recorded(models.database, found.exposure):
        return replace(await _pinned(models, engine, found, name), exposure=found.exposure)


async def _pinned(models: ModelResolver, engine: EngineClient, found: ResolvedModel, name: str) -> PinnedModel:
    run_id = None if found.run is None else found.run.id
    if found.name in models.base_models:
        return PinnedModel(name, found.name, None, found.backend, run_id)
    if found.backend == embedded.NAME:
        return await _on_engine(found, engine, name, run_id)
    assert found.run is not None
    step = found.run.step if found.step is None else found.step
    if step is None:  # without a step, the server would always use the newest checkpoint
        raise Conflict(f"Run {run_id} has no checkpoint yet; retry after its baseline evaluation.")
    return PinnedModel(name, found.name, step, found.backend, run_id)


async def _on_engine(found: ResolvedModel, engine: EngineClient, name: str, run_id: str | None) -> PinnedModel:
    try:
        model = ModelName.parse(found.name)
        known = await engine.described(f"/models/{model.project}/{model.name}")
    except (ValueError, NotFound):
        raise UnknownModelName(name) from None
    step = known["step"] if found.step is None else found.step
    if step not in known["steps"]:
        raise UnknownModelName(name)
    return PinnedModel(name, str(model.at(step)), step, found.backend, run_id)
