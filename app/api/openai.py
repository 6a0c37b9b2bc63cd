"""`/v1`: the models of this service for any OpenAI client. docs/models.md describes their names."""

from typing import Annotated

from fastapi import Path, Request, Response

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.engine import CurrentEngine, CurrentModels, CurrentProxy
from learnloop_service.app.api.raw_bodies import BadBody, described_body, json_object
from learnloop_service.app.api.routers import openai_router
from learnloop_service.app.api.session_models import (
    COMPLETION,
    MESSAGE,
    RESPONSE,
    CurrentGateway,
    asked_by_agents,
    chat_in_session,
    count_in_session,
    message_in_session,
    model_in_session,
    response_in_session,
)
from learnloop_service.app.api.users import CurrentUsers
from learnloop_service.app.gateway import anthropic_messages
from learnloop_service.app.gateway.chat import ChatAsked
from learnloop_service.app.gateway.forms import GatewayRequest, begun
from learnloop_service.app.gateway.gateway import SessionGateway
from learnloop_service.app.gateway.observed import ObservedExchange, observed_response
from learnloop_service.app.gateway.unrecorded import UnrecordedExchange
from learnloop_service.app.model_registry.listing import listed, one
from learnloop_service.app.model_registry.resolver import ModelResolver, ResolvedModel
from learnloop_service.app.releases.exposures import failure_recorded
from learnloop_service.app.releases.split import Exposure
from learnloop_service.app.schemas.anthropic import CountTokensRequest, MessagesRequest, TokenCount
from learnloop_service.app.schemas.openai import (
    CompletionRequest,
    ModelObject,
    ModelObjects,
    ResponseRequest,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.registry import is_on_engine

router = openai_router("openai", prefix="/v1")
RELEASE_HEADER = "Learnloop-Release"
"""Header of replies that a release counts, with its id."""

ModelPath = Annotated[str, Path(description="Name of the model; append `@STEP` for a checkpoint")]


@asked_by_agents(
    router, "/chat/completions", chat_in_session, responses=COMPLETION, openapi_extra=described_body(CompletionRequest)
)
async def chat_completions(
    models: CurrentModels,
    caller: CurrentCaller,
    proxy: CurrentProxy,
    gateway: CurrentGateway,
    users: CurrentUsers,
    request: Request,
) -> Response:
    """Create a chat completion, streamed or not. The response is one turn of the model: it calls no tools by itself.

    Parameters that are not supported and would change the response are refused by name.
    """
    body = json_object(await request.body())
    model = await models.resolve(caller, _model_of(body), users.of_openai(body))
    if model.exposure is not None:
        return await _observed(models, model, model.exposure, gateway, request, ChatAsked(body))
    body, header = await gateway.prompts.put_in(model, body)
    reply = await proxy.chat(request, await models.endpoint(model), body)
    reply.headers.update(header)
    return reply


@asked_by_agents(
    router, "/responses", response_in_session, responses=RESPONSE, openapi_extra=described_body(ResponseRequest)
)
async def create_response(
    models: CurrentModels,
    caller: CurrentCaller,
    proxy: CurrentProxy,
    gateway: CurrentGateway,
    users: CurrentUsers,
    request: Request,
) -> Response:
    """Create a response with a model of the engine, streamed or not. It is one turn of the model.

    Parameters that are not supported and would change the response are refused by name.
    """
    body = json_object(await request.body())
    model = await models.resolve(caller, _model_of(body), users.of_openai(body))
    if not is_on_engine(model.backend):
        raise BadBody(
            ("body", "model"), f"{model.name} is on the backend {model.backend!r}, which only has chat completions."
        )
    body, header = await gateway.prompts.put_in_response(model, body)
    # Identifies who can continue a response. Callers for all projects share a value that no project's key has.
    whose = {"openai-project": caller.project or ""}

    async def forwarded() -> Response:
        endpoint = await models.endpoint(model)
        content = {**body, "model": endpoint.model}
        return await proxy.forward(request, endpoint, "/responses", headers=whose, json=content)

    if model.exposure is None:
        reply = await forwarded()
    else:
        reply = _of_release(await observed_response(models.database, model.exposure, forwarded), model.exposure)
    reply.headers.update(header)
    return reply


@asked_by_agents(
    router, "/messages", message_in_session, responses=MESSAGE, openapi_extra=described_body(MessagesRequest)
)
async def create_message(
    models: CurrentModels, caller: CurrentCaller, gateway: CurrentGateway, users: CurrentUsers, request: Request
) -> Response:
    """Create a message with Anthropic's protocol, streamed or not. It is one turn of the model.

    Parameters that are not supported and would change the response are refused by name.
    """
    body = json_object(await request.body())
    gateway_request = anthropic_messages.read_request(body)
    model = await models.resolve(caller, _model_of(body), users.of_anthropic(body))
    if model.exposure is not None:
        return await _observed(models, model, model.exposure, gateway, request, gateway_request)
    chat_body, header = await gateway.prompts.put_in(model, gateway_request.chat_body)
    exchange = UnrecordedExchange(gateway.upstream, await models.endpoint(model), chat_body, header)
    return await begun(exchange, request, gateway_request)


@router.post(
    "/messages/count_tokens",
    responses={200: {"model": TokenCount}},
    openapi_extra=described_body(CountTokensRequest),
)
async def count_message_tokens(
    models: CurrentModels, caller: CurrentCaller, gateway: CurrentGateway, request: Request
) -> dict[str, Json]:
    """Count the tokens of a message's prompt with Anthropic's protocol.

    They are those of the model's chat template, exactly.
    """
    if caller.agent is not None:
        return await count_in_session(request, gateway, caller, caller.agent.session_id)
    body = json_object(await request.body())
    chat_body = anthropic_messages.counted(body)
    endpoint = await models.endpoint(await models.resolve(caller, _model_of(body)))
    count = await gateway.upstream.count_tokens(endpoint, {**chat_body, "model": endpoint.model})
    return {"input_tokens": count}


@router.get("/models", responses={200: {"model": ModelObjects}})
async def list_openai_models(
    service: CurrentService, models: CurrentModels, caller: CurrentCaller, engine: CurrentEngine
) -> dict[str, Json]:
    """List base models, and the models and promoted names of the caller's project.

    With the key of a session, the session's model is the only one.
    """
    if caller.agent is not None:
        return {"object": "list", "data": [await model_in_session(service.database, caller, caller.agent.session_id)]}
    return {"object": "list", "data": await listed(service.database, models.base_models, engine, caller)}


@router.get("/models/{name:path}", responses={200: {"model": ModelObject}})
async def retrieve_openai_model(
    service: CurrentService, models: CurrentModels, caller: CurrentCaller, engine: CurrentEngine, name: ModelPath
) -> dict[str, Json]:
    """Get a model, or one of its checkpoints. With the key of a session, any name means the session's model."""
    if caller.agent is not None:
        return await model_in_session(service.database, caller, caller.agent.session_id, name)
    return await one(service.database, models, engine, caller, name)


async def _observed(
    models: ModelResolver,
    model: ResolvedModel,
    exposure: Exposure,
    gateway: SessionGateway,
    request: Request,
    gateway_request: GatewayRequest,
) -> Response:
    """Reply to a request that a release counts."""
    chat_body, header = await gateway.prompts.put_in(model, gateway_request.chat_body)
    async with failure_recorded(models.database, exposure):
        endpoint = await models.endpoint(model)
    exchange = UnrecordedExchange(gateway.upstream, endpoint, chat_body, header)
    return _of_release(
        await begun(ObservedExchange(exchange, models.database, exposure), request, gateway_request), exposure
    )


def _of_release(reply: Response, exposure: Exposure) -> Response:
    reply.headers[RELEASE_HEADER] = exposure.split.release_id
    return reply


def _model_of(body: dict[str, Json]) -> str:
    model = body.get("model")
    if not isinstance(model, str):
        raise BadBody(("body", "model"), "model must be a string: the name of a model")
    return model
