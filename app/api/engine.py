"""Dependencies of handlers that use models: resolving names, sampling, evaluating, managing the engine's models."""

from typing import Annotated

from fastapi import Depends, Request

from learnloop_service.app.api.dependencies import CurrentService, of_app
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.proxy import ChatProxy
from learnloop_service.app.model_registry.resolver import ModelResolver, base_models
from learnloop_service.app.operations.start.evaluation import EvaluationStarter


async def _engine(request: Request, service: CurrentService) -> EngineClient:
    return EngineClient(service.engine, request.app.state.proxy.http)


async def _models(service: CurrentService) -> ModelResolver:
    return ModelResolver(service.database, service.engine, service.connect, base_models(service.settings))


CurrentModels = Annotated[ModelResolver, Depends(_models)]


async def _evaluations(service: CurrentService, models: CurrentModels) -> EvaluationStarter:
    return EvaluationStarter(service, service.store, models, service.runner.wake)


CurrentProxy = Annotated[ChatProxy, of_app("proxy")]
CurrentEngine = Annotated[EngineClient, Depends(_engine)]
CurrentEvaluations = Annotated[EvaluationStarter, Depends(_evaluations)]
