"""The model of an agent session under `/sessions/{id}/v1`, and with the session's key also under `/v1`."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request, Response
from fastapi.routing import APIRoute

from learnloop_service.app.agent_sessions.calls import SessionCaller
from learnloop_service.app.agent_sessions.store import AgentSessions
from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentDatabase, of_app
from learnloop_service.app.api.raw_bodies import described_body, json_object
from learnloop_service.app.api.routers import openai_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.gateway import anthropic_messages, chat, responses
from learnloop_service.app.gateway.forms import AgentRequest, GatewayRequest, reply
from learnloop_service.app.gateway.gateway import SessionGateway
from learnloop_service.app.schemas.anthropic import CountTokensRequest, MessageObject, MessagesRequest, TokenCount
from learnloop_service.app.schemas.openai import (
    ChatCompletion,
    CompletionRequest,
    ModelObject,
    ModelObjects,
    ResponseObject,
    ResponseRequest,
)
from learnloop_service.environment.json_type import Json

router = openai_router("sessions", prefix="/sessions/{id}/v1")

SessionId = Annotated[str, Path(max_length=64, pattern=NO_NUL, description="Id of the session")]
AnyModelName = Annotated[str, Path(description="Any name: in a session each one means its model")]


_STREAM: Json = {"text/event-stream": {"schema": {"type": "string"}}}
COMPLETION: Json = {200: {"model": ChatCompletion, "content": _STREAM}}
"""Responses of routes for chat completions."""
RESPONSE: Json = {200: {"model": ResponseObject, "content": _STREAM}}
"""Responses of routes of OpenAI's Responses API."""
MESSAGE: Json = {200: {"model": MessageObject, "content": _STREAM}}
"""Responses of routes for messages."""

CurrentGateway = Annotated[SessionGateway, of_app("session_gateway")]
InSession = Callable[[Request, SessionGateway, Caller, str], Awaitable[Response]]
"""Answers a request in the session with that id."""
Handler = TypeVar("Handler", bound=Callable[..., Any])


async def chat_in_session(request: Request, gateway: SessionGateway, caller: Caller, session_id: str) -> Response:
    """Return the reply to a request for a chat completion."""
    gateway_request = chat.ChatAsked(json_object(await request.body()))
    return await _in_session(request, gateway, caller, session_id, chat.NAME, gateway_request)


async def response_in_session(request: Request, gateway: SessionGateway, caller: Caller, session_id: str) -> Response:
    """Return the reply to a request of OpenAI's Responses API."""
    body = json_object(await request.body())
    gateway_request = responses.read_request(body, await gateway.items(session_id, responses.references_in(body)))
    return await _in_session(request, gateway, caller, session_id, responses.NAME, gateway_request)


async def message_in_session(request: Request, gateway: SessionGateway, caller: Caller, session_id: str) -> Response:
    """Return the reply to a request for a message."""
    gateway_request = anthropic_messages.read_request(json_object(await request.body()))
    return await _in_session(request, gateway, caller, session_id, anthropic_messages.NAME, gateway_request)


def asked_by_agents(
    router: APIRouter, path: str, in_session: InSession, **documented: Any
) -> Callable[[Handler], Handler]:
    """Decorate the handler of a POST. If the key is an agent's, `in_session` answers instead, in the key's session; the
    Guard has compared its id with the path. Agents make these requests all the time, and resolving the parameters of
    each takes FastAPI ten times as long as finding the route."""

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            of_others = super().get_route_handler()

            async def handle(request: Request) -> Response:
                caller: Caller = request.state.caller
                if caller.agent is None:
                    return await of_others(request)
                return await in_session(request, request.app.state.session_gateway, caller, caller.agent.session_id)

            return handle

    def add(handler: Handler) -> Handler:
        router.add_api_route(path, handler, methods=["POST"], route_class_override=Route, **documented)
        return handler

    return add


@asked_by_agents(
    router, "/chat/completions", chat_in_session, responses=COMPLETION, openapi_extra=described_body(CompletionRequest)
)
async def session_chat_completions(
    gateway: CurrentGateway, caller: CurrentCaller, request: Request, id: SessionId
) -> Response:
    """Create a chat completion in a session, streamed or not. The session decides which checkpoint answers."""
    return await chat_in_session(request, gateway, caller, id)


@asked_by_agents(
    router, "/responses", response_in_session, responses=RESPONSE, openapi_extra=described_body(ResponseRequest)
)
async def session_response(gateway: CurrentGateway, caller: CurrentCaller, request: Request, id: SessionId) -> Response:
    """Create a response in a session with OpenAI's Responses API.

    Streamed or not, with any backend. Send the items of the conversation, those of replies whole or by reference:
    responses are not continued by their id.
    """
    return await response_in_session(request, gateway, caller, id)


@asked_by_agents(
    router, "/messages", message_in_session, responses=MESSAGE, openapi_extra=described_body(MessagesRequest)
)
async def session_messages(gateway: CurrentGateway, caller: CurrentCaller, request: Request, id: SessionId) -> Response:
    """Create a message in a session with Anthropic's protocol, streamed or not.

    The base URL for Anthropic's clients is that of the session without its last part, `/v1`.
    """
    return await message_in_session(request, gateway, caller, id)


@router.get("/models", responses={200: {"model": ModelObjects}})
async def list_session_models(database: CurrentDatabase, caller: CurrentCaller, id: SessionId) -> dict[str, Json]:
    """List the model of a session.

    There is one, with the name that the session was opened with.
    """
    return {"object": "list", "data": [await model_in_session(database, caller, id)]}


@router.get("/models/{name:path}", responses={200: {"model": ModelObject}})
async def retrieve_session_model(
    database: CurrentDatabase, caller: CurrentCaller, id: SessionId, name: AnyModelName
) -> dict[str, Json]:
    """Get the model of a session. Whatever name a request in it gives, this model answers."""
    return await model_in_session(database, caller, id, name)


async def model_in_session(
    database: Database, caller: Caller, session_id: str, name: str | None = None
) -> dict[str, Json]:
    """Return the session's model under `name`, or under the name that the session was opened with (None)."""
    row = await AgentSessions(database).get(caller, session_id)
    return {
        "id": row.asked_model if name is None else name,
        "object": "model",
        "created": int(row.opened_at.timestamp()),
        "owned_by": row.project,
        "backend": row.backend,
    }


@router.post(
    "/messages/count_tokens",
    responses={200: {"model": TokenCount}},
    openapi_extra=described_body(CountTokensRequest),
)
async def count_session_tokens(
    gateway: CurrentGateway, caller: CurrentCaller, request: Request, id: SessionId
) -> dict[str, Json]:
    """Count the tokens of a message's prompt in a session, with Anthropic's protocol.

    They are those of the model's chat template, and of earlier replies as they were sampled. Nothing is recorded.
    """
    return await count_in_session(request, gateway, caller, id)


async def count_in_session(
    request: Request, gateway: SessionGateway, caller: Caller, session_id: str
) -> dict[str, Json]:
    """Return the reply to a request to count tokens."""
    chat_body = anthropic_messages.counted(json_object(await request.body()))
    return {"input_tokens": await gateway.count_tokens(_asker(caller, session_id), chat_body)}


def _asker(caller: Caller, session_id: str) -> SessionCaller:
    return SessionCaller(session_id, None if caller.agent is None else caller.agent.sha256)


async def _in_session(
    request: Request,
    gateway: SessionGateway,
    caller: Caller,
    session_id: str,
    protocol: str,
    gateway_request: GatewayRequest,
) -> Response:
    return await reply(gateway, AgentRequest(request, _asker(caller, session_id), protocol), gateway_request)
