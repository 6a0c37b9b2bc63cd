"""Pins a session to the checkpoint and the prompt that a name refers to when the session is opened."""

from dataclasses import replace

from learnloop_service.app.agent_sessions.store import PinnedModel
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.errors import Conflict, NotFound
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.resolver import ModelResolver, ResolvedModel, UnknownModelName
from learnloop_service.app.releases.exposures import failure_recorded
from learnloop_service.app.releases.split import Requester
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.protocol.model_name import ModelName


async def pinned(
    models: ModelResolver, engine: EngineClient, caller: Caller, name: str, requester: Requester | None = None
) -> PinnedModel:
    """Return the checkpoint and the prompt that a name refers to now, for that requester if a release divides its
    requests. Later training or promotion does not change them.

    Raises UnknownModelName (also if the checkpoint is gone), Conflict if the run has no checkpoint yet, and
    Unavailable.
    """
    resolved = await models.resolve(caller, name, requester)
    async with failure_recorded(models.database, resolved.exposure):
        checkpoint = await _pinned(models, engine, resolved, name)
    return replace(checkpoint, prompt=resolved.prompt, exposure=resolved.exposure, explore=resolved.explore)


async def _pinned(models: ModelResolver, engine: EngineClient, resolved: ResolvedModel, name: str) -> PinnedModel:
    run_id = None if resolved.run is None else resolved.run.id
    if resolved.name in models.base_models:
        return PinnedModel(name, resolved.name, None, resolved.backend, run_id)
    if is_on_engine(resolved.backend):
        return await _on_engine(resolved, engine, name, run_id)
    assert resolved.run is not None
    step = resolved.run.step if resolved.step is None else resolved.step
    if step is None:  # without a step, the server would always use the newest checkpoint
        raise Conflict(f"Run {run_id} has no checkpoint yet; retry after its baseline evaluation.")
    return PinnedModel(name, resolved.name, step, resolved.backend, run_id)


async def _on_engine(resolved: ResolvedModel, engine: EngineClient, name: str, run_id: str | None) -> PinnedModel:
    try:
        model = ModelName.parse(resolved.name)
        description = await engine.described(f"/models/{model.project}/{model.name}")
    except (ValueError, NotFound):
        raise UnknownModelName(name) from None
    step = description["step"] if resolved.step is None else resolved.step
    if step not in description["steps"]:
        raise UnknownModelName(name)
    return PinnedModel(name, str(model.at(step)), step, resolved.backend, run_id)
