"""How handlers reach the engine: to sample from models and to list them."""

from typing import Annotated

from fastapi import Depends, Request

from app.api.dependencies import CurrentService
from app.model_registry.engine_client import EngineClient
from app.model_registry.proxy import Relay


async def _relay(request: Request) -> Relay:
    relay: Relay = request.app.state.relay
    return relay


async def _engine(request: Request, service: CurrentService) -> EngineClient:
    return EngineClient(service.engine, request.app.state.relay.http)


CurrentRelay = Annotated[Relay, Depends(_relay)]
CurrentEngine = Annotated[EngineClient, Depends(_engine)]
