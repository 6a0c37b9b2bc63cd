"""OpenAI's Responses API on top of chat completions, with the same prompts and sampling in a different form."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager

import structlog
from pydantic import ValidationError

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.http.chat import ChatCompletions
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.engine.http.errors import ApiError, api_error, invalid
from learnloop_service.training.engine.http.responses.stored import StoredResponses
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.responses.events import Event, ResponseEvents
from learnloop_service.training.protocol.responses.items import Item, reference_in
from learnloop_service.training.protocol.responses.parameters import BadParameter
from learnloop_service.training.protocol.responses.reply import ResponseFields, output_of, status_of
from learnloop_service.training.protocol.responses.request import CHAT_NAMES, ResponsesRequest

log = structlog.get_logger(__name__)


class Responses:
    """Answers requests of the Responses API on the event loop.

    `scope` identifies whose stored responses can be continued. It is OpenAI's project header.
    """

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat
        self._stored = StoredResponses()

    async def create(self, request: ResponsesRequest, scope: str) -> dict[str, Json]:
        """Return a response. Raises the errors that `api_error` maps. Cancelling it cancels the sampling."""
        conversation = self._conversation(request, scope)
        with _parameters_renamed():
            completion = await self._chat.complete(_chat_request(request, conversation))
        [choice] = completion["choices"]
        status = status_of(choice["finish_reason"])
        logprobs = choice["logprobs"]["content"] if request.logprobs else ()
        reply = ResponseFields(request, completion["model"])
        output = output_of(reply.id, choice["message"], logprobs, status, request.offered)
        response = reply.body(status, output, usage=completion["usage"], malformed=choice.get(MALFORMED))
        self._keep(request, scope, conversation, response)
        return response

    async def stream(self, request: ResponsesRequest, scope: str) -> AsyncIterator[str]:
        """Yield a response as server-sent events.

        Errors before the first token are raised as in `create`; later ones are the last event.
        """
        conversation = self._conversation(request, scope)
        with _parameters_renamed():
            chunks = await self._chat.chunks(_chat_request(request, conversation))
        return self._events(request, scope, conversation, chunks)

    async def _events(
        self,
        request: ResponsesRequest,
        scope: str,
        conversation: list[Item],
        chunks: AsyncGenerator[dict[str, Json]],
    ) -> AsyncIterator[str]:
        async with aclosing(chunks):
            first = await anext(chunks)
            events = ResponseEvents(ResponseFields(request, first["model"]))
            try:
                async for event in events.of(chunks):
                    if events.completed is not None:
                        self._keep(request, scope, conversation, events.completed)
                    yield _server_sent(event)
            except Exception as error:
                log.warning("stream failed", error=repr(error))
                yield _server_sent(events.failed(api_error(error).message))

    def _conversation(self, request: ResponsesRequest, scope: str) -> list[Item]:
        before = request.previous_response_id
        earlier = self._stored.conversation(scope, before) if before else ()
        return [*earlier, *(self._referred(item, scope) for item in request.items)]

    def _referred(self, item: Item, scope: str) -> Item:
        return item if (id := reference_in(item)) is None else self._stored.item(scope, id)

    def _keep(self, request: ResponsesRequest, scope: str, conversation: list[Item], response: dict[str, Json]) -> None:
        if request.store is not False:
            self._stored.keep(scope, response["id"], conversation, response["output"])


def _chat_request(request: ResponsesRequest, items: Sequence[Item]) -> EngineChatRequest:
    try:
        return EngineChatRequest.model_validate(request.chat_body(items))
    except ValidationError as error:
        raise invalid(error, CHAT_NAMES) from None
    except BadParameter as error:
        raise ApiError(400, str(error), code=error.code, param=error.param) from None


@contextmanager
def _parameters_renamed() -> Iterator[None]:
    """Name the parameter of an error of chat completions as the Responses API does."""
    try:
        yield
    except ApiError as error:
        if (param := CHAT_NAMES.get(error.param or "")) is None:
            raise
        message = error.message.replace(str(error.param), param)
        raise ApiError(error.status, message, code=error.code, param=param) from None


def _server_sent(event: Event) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"
