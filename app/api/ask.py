"""Gives a task to a trained agent."""

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import Request
from fastapi.responses import StreamingResponse

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.engine import CurrentModels
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.api.users import CurrentUsers
from learnloop_service.app.errors import ServiceError
from learnloop_service.app.operations import ask as asking
from learnloop_service.app.operations.ask import Tell
from learnloop_service.app.schemas.ask import AskOut, AskRequest, InvokeOut, InvokeRequest

router = keyed_router("ask")
_STREAM = "text/event-stream"
_Stream = asyncio.Queue[tuple[str, str] | Exception]
"""Queue of a stream: events with their data, then the answer or the error."""


@router.post("/ask", response_model=AskOut, responses={200: {"content": {_STREAM: {}}}})
async def ask(
    service: CurrentService,
    models: CurrentModels,
    caller: CurrentCaller,
    users: CurrentUsers,
    request: AskRequest,
    http: Request,
) -> AskOut | StreamingResponse:
    """Give a trained agent one task, and wait for the result.

    A task is what the environment says it is, such as a question.

    The agent is the best checkpoint of a run, one of its other checkpoints, or any model by name. With
    `Accept: text/event-stream` the messages of the conversation are streamed as they come, as events `message`; the
    last event is `answer`, or `error` with a problem.
    """
    if _STREAM not in http.headers.get("accept", ""):
        return await asking.ask(service, models, request, caller, users.hash_of(request.user))
    events: _Stream = asyncio.Queue()

    async def answer(tell: Tell) -> None:
        try:
            user_hash = users.hash_of(request.user)
            reply = await asking.ask(service, models, request, caller, user_hash, tell)
            events.put_nowait(("answer", reply.model_dump_json()))
        except Exception as error:
            events.put_nowait(error)

    answering = asyncio.create_task(answer(lambda message: events.put_nowait(("message", json.dumps(message)))))
    first = await events.get()
    if isinstance(first, Exception):
        raise first
    return StreamingResponse(_stream(first, events, answering), media_type=_STREAM)


async def _stream(first: tuple[str, str], events: _Stream, answering: asyncio.Task[None]) -> AsyncIterator[str]:
    """Yield the events up to the answer. If the client disconnects, the rollout is cancelled."""
    try:
        event: tuple[str, str] | Exception = first
        while not isinstance(event, Exception):
            yield f"event: {event[0]}\ndata: {event[1]}\n\n"
            if event[0] == "answer":
                return
            event = await events.get()
        if not isinstance(event, ServiceError):
            raise event
        yield f"event: error\ndata: {json.dumps({'status': event.status, 'detail': str(event)})}\n\n"
    finally:
        answering.cancel()


@router.post("/invoke")
async def invoke(
    service: CurrentService, models: CurrentModels, caller: CurrentCaller, request: InvokeRequest
) -> InvokeOut:
    """Answer a question in the request format of ZenML deployments.

    The agent that was promoted last answers; without a promotion the newest trained one, or the base model if none has
    been trained yet. A real `inbox_address` means the imported inbox that has email of it; if there is none, `success`
    is false and `answer` says so.
    """
    return await asking.invoke(service, models, request.parameters, caller)
