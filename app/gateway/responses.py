"""OpenAI's Responses API in a session, on top of chat completions."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import orjson
from pydantic import ValidationError

from learnloop_service.app.agent_sessions.canonical import BadRequestBody
from learnloop_service.app.gateway.chunks import Assembly, Chunk
from learnloop_service.app.gateway.stream_errors import STREAM_ERRORS
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.responses.events import Event, ResponseEvents
from learnloop_service.training.protocol.responses.items import Item, reference_in
from learnloop_service.training.protocol.responses.parameters import BadParameter, hint_warnings
from learnloop_service.training.protocol.responses.reply import ResponseFields, output_of, status_of
from learnloop_service.training.protocol.responses.request import ResponsesRequest
from learnloop_service.training.protocol.responses.tools import OfferedTools
from learnloop_service.training.protocol.validation_message import message_of

NAME = "responses"


@dataclass(frozen=True, slots=True)
class ResponsesAsked:
    """A request to the Responses API."""

    request: ResponsesRequest
    chat_body: dict[str, Json]
    warnings: Sequence[str]

    @property
    def is_streamed(self) -> bool:
        return bool(self.request.stream)

    def document(self, completion: Mapping[str, Json]) -> dict[str, Json]:
        """Return the whole response."""
        [choice] = completion["choices"]
        status = status_of(choice["finish_reason"])
        logprobs = (choice.get("logprobs") or {}).get("content") or () if self.request.logprobs else ()
        reply = self._reply(completion)
        output = output_of(reply.id, choice["message"], logprobs, status, self.request.offered)
        return reply.body(status, output, usage=completion.get("usage"), malformed=choice.get(MALFORMED))

    async def events(self, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[str]:
        """Yield the response as server-sent events."""
        async with aclosing(chunks):
            first = await anext(chunks)
            response_events = ResponseEvents(self._reply(first))
            try:
                async for event in response_events.of(self._plain(first, chunks)):
                    yield _server_sent(event)
            except STREAM_ERRORS as error:
                yield _server_sent(response_events.failed(str(error)))

    def _reply(self, begun: Mapping[str, Json]) -> ResponseFields:
        """Return the constant fields of the response."""
        return ResponseFields(self.request, str(begun.get("model")), _id_of(begun), int(begun.get("created") or 0))

    async def _plain(self, first: Chunk, rest: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        """Yield the chunks, with each tool call held back and sent whole in the last one."""
        whole = Assembly()
        whole.add(first)
        yield {**first, "choices": [self._plain_choice(choice, whole) for choice in first.get("choices") or ()]}
        async for chunk in rest:
            whole.add(chunk)
            yield {**chunk, "choices": [self._plain_choice(choice, whole) for choice in chunk.get("choices") or ()]}

    def _plain_choice(self, choice: Mapping[str, Json], whole: Assembly) -> dict[str, Json]:
        delta = {name: value for name, value in (choice.get("delta") or {}).items() if name != "tool_calls"}
        if choice.get("finish_reason"):
            [whole_choice] = whole.completion()["choices"]
            delta |= {name: value for name, value in whole_choice["message"].items() if name == "tool_calls"}
        logprobs = choice.get("logprobs") if self.request.logprobs else None
        plain = {"delta": delta, "logprobs": logprobs, "finish_reason": choice.get("finish_reason")}
        return plain | ({MALFORMED: choice[MALFORMED]} if MALFORMED in choice else {})


def _id_of(completion: Mapping[str, Json]) -> str:
    """Return the response's id. It depends only on the answer, so a repeated answer has the same id."""
    return f"resp_{str(completion.get('id')).removeprefix('chatcmpl-')}"


def references_in(body: Mapping[str, Json]) -> set[str]:
    """Return the ids of earlier items to which the body refers."""
    items = conversation if isinstance(conversation := body.get("input"), list) else ()
    return {id for item in items if isinstance(item, dict) and (id := reference_in(item)) is not None}


def items_of(completion: Mapping[str, Json]) -> dict[str, Item]:
    """Return the items of an answer by id, as clients were given them."""
    message = completion["choices"][0]["message"]
    return {
        item["id"]: item for item in output_of(_id_of(completion), message, (), "completed", OfferedTools((), {}, ()))
    }


def read_request(body: Mapping[str, Json], items: Mapping[str, Item]) -> ResponsesAsked:
    """Translate the request to a chat completion. `items` are those to which it refers. Raises BadRequestBody."""
    try:
        request = ResponsesRequest.model_validate({"model": "", **body})
        if request.previous_response_id is not None:
            raise BadParameter(
                "previous_response_id: in a session, send the items of the conversation", param="previous_response_id"
            )
        chat_body = request.chat_body([_whole(item, items) for item in request.items])
        return ResponsesAsked(request, chat_body, [*hint_warnings(body), *request.warnings])
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = fault.get("ctx", {}).get("parameter") or ".".join(map(str, fault["loc"])) or "body"
        raise BadRequestBody(("body", where), f"{where}: {message_of(fault)}") from None
    except BadParameter as error:
        raise BadRequestBody(("body", error.param), str(error)) from None


def _whole(item: Item, items: Mapping[str, Item]) -> Item:
    if (id := reference_in(item)) is not None and id not in items:
        raise BadParameter(
            f"input: the session has no item {id!r}; refer to items of its replies, or send them whole",
            param="input",
            code="item_not_found",
        )
    return item if id is None else items[id]


def _server_sent(event: Event) -> str:
    return f"event: {event['type']}\ndata: {orjson.dumps(event).decode()}\n\n"
