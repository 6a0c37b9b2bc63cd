"""Converts the chunks of a streamed chat completion to the events of a streamed response."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.responses.items import call_item, item_id, message_item, text_part
from learnloop_service.training.protocol.responses.reply import ResponseFields, status_of

Event = dict[str, Json]


@dataclass(slots=True)
class _Message:
    """The text that is being streamed. `unsent` are the tokens whose text has not been sent yet."""

    id: str
    text: str = ""
    tokens: list[Json] = field(default_factory=list)
    unsent: list[Json] = field(default_factory=list)
    begun: bool = False


class ResponseEvents:
    """Numbers the events of one response, and collects its output.

    `completed` is the finished response, and None until then.
    """

    def __init__(self, reply: ResponseFields) -> None:
        self._reply = reply
        self._number = 0
        self._output: list[dict[str, Json]] = []
        self._message = self._new_message()
        self.completed: dict[str, Json] | None = None

    async def of(self, chunks: AsyncIterator[Mapping[str, Json]]) -> AsyncIterator[Event]:
        """Yield the events of a completion with one choice, whose last chunk has its usage."""
        yield self._event("response.created", response=self._reply.body("in_progress"))
        yield self._event("response.in_progress", response=self._reply.body("in_progress"))
        usage, finish_reason, malformed = None, "stop", None
        async for chunk in chunks:
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                for event in self._delta_events(choice):
                    yield event
                finish_reason = choice["finish_reason"] or finish_reason
                malformed = choice.get(MALFORMED) or malformed
        status = status_of(finish_reason)
        for event in self._end_text(status):
            yield event
        self.completed = self._reply.body(status, self._output, usage=usage, malformed=malformed)
        yield self._event(f"response.{status}", response=self.completed)

    def failed(self, message: str) -> Event:
        """Return the last event of a response that was interrupted by an error."""
        error = {"code": "server_error", "message": message}
        return self._event("response.failed", response=self._reply.body("failed", self._output, error=error))

    def _delta_events(self, choice: Mapping[str, Json]) -> Iterator[Event]:
        delta, tokens = choice["delta"], (choice["logprobs"] or {}).get("content") or []
        if delta.get("content") or tokens:
            yield from self._text_events(delta.get("content") or "", tokens)
        if calls := delta.get("tool_calls"):
            if self._message.begun:
                yield from self._end_message("completed")
            for call in calls:
                yield from self._call_events(call)

    def _text_events(self, text: str, tokens: list[Json]) -> Iterator[Event]:
        message = self._message
        message.tokens += tokens
        message.unsent += tokens
        if not text:
            return
        if not message.begun:
            yield from self._begin_message()
        message.text += text
        logprobs, message.unsent = message.unsent, []
        yield self._event("response.output_text.delta", **self._part(), delta=text, logprobs=logprobs)

    def _begin_message(self) -> Iterator[Event]:
        self._message.begun = True
        item = message_item(self._message.id, "", (), "in_progress") | {"content": []}
        yield self._event("response.output_item.added", output_index=len(self._output), item=item)
        yield self._event("response.content_part.added", **self._part(), part=text_part(""))

    def _end_message(self, status: str) -> Iterator[Event]:
        message, where, index = self._message, self._part(), len(self._output)
        item = message_item(message.id, message.text, message.tokens, status)
        yield self._event("response.output_text.done", **where, text=message.text, logprobs=message.tokens)
        yield self._event("response.content_part.done", **where, part=item["content"][0])
        self._output.append(item)
        self._message = self._new_message()
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _call_events(self, call: Mapping[str, Json]) -> Iterator[Event]:
        item, index = call_item(self._id("fc"), call, self._reply.request.offered), len(self._output)
        where = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **where, delta=arguments)
        yield self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=arguments)
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end_text(self, status: str) -> Iterator[Event]:
        """End the text. An empty reply becomes an empty text."""
        if not self._message.begun and not self._output:
            yield from self._begin_message()
        if self._message.begun:
            yield from self._end_message(status)

    def _new_message(self) -> _Message:
        return _Message(self._id("msg"))

    def _id(self, kind: str) -> str:
        return item_id(kind, self._reply.id, len(self._output))

    def _part(self) -> dict[str, Json]:
        return {"item_id": self._message.id, "output_index": len(self._output), "content_index": 0}

    def _event(self, kind: str, **fields: Json) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event
