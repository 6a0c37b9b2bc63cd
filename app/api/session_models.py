"""The model of an agent session, below `/sessions/{id}/v1`; with the session's key also below `/v1`."""

from typing import Annotated

from fastapi import Depends, Path, Request, Response

from app.agent_sessions.calls import Asker
from app.api.dependencies import CurrentCaller
from app.api.openai_bodies import described_body, json_object
from app.api.routers import openai_router
from app.auth.caller import Caller
from app.gateway import chat
from app.gateway.forms import AgentRequest, Asked, reply
from app.gateway.gateway import SessionGateway
from app.schemas.openai import ChatCompletion, ChatRequest

router = openai_router("sessions", prefix="/sessions/{id}/v1")

_NO_NUL = r"^[^\x00]+$"
SessionId = Annotated[str, Path(max_length=64, pattern=_NO_NUL, description="Id of the session")]


async def _gateway(request: Request) -> SessionGateway:
    gateway: SessionGateway = request.app.state.session_gateway
    return gateway


CurrentGateway = Annotated[SessionGateway, Depends(_gateway)]


@router.post(
    "/chat/completions",
    responses={200: {"model": ChatCompletion, "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    openapi_extra=described_body(ChatRequest),
)
async def session_chat_completions(
    gateway: CurrentGateway, caller: CurrentCaller, request: Request, id: SessionId
) -> Response:
    """Create a chat completion in a session, streamed or not. The session decides which checkpoint answers."""
    return await chat_in_session(request, gateway, caller, id)


async def chat_in_session(request: Request, gateway: SessionGateway, caller: Caller, session_id: str) -> Response:
    """The reply to a request for a chat completion."""
    asked = chat.ChatAsked(json_object(await request.body()))
    return await _in_session(request, gateway, caller, session_id, chat.NAME, asked)


async def _in_session(
    request: Request, gateway: SessionGateway, caller: Caller, session_id: str, protocol: str, asked: Asked
) -> Response:
    asker = Asker(session_id, None if caller.agent is None else caller.agent.sha256)
    return await reply(gateway, AgentRequest(request, asker, protocol), asked)
