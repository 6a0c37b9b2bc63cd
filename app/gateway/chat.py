"""OpenAI's Chat Completions API in a session."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import orjson

from learnloop_service.app.gateway.chunks import Chunk
from learnloop_service.app.gateway.stream_errors import STREAM_ERRORS, status_of
from learnloop_service.app.http.openai_errors import openai_error
from learnloop_service.environment.json_type import Json

NAME = "chat"


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """A request for a chat completion."""

    chat_body: dict[str, Json]

    @property
    def warnings(self) -> Sequence[str]:
        return ()

    @property
    def is_streamed(self) -> bool:
        return bool(self.chat_body.get("stream"))

    def document(self, completion: Mapping[str, Json]) -> dict[str, Json]:
        """Return the completion with the fields that the client asked for."""
        hidden = self._hidden
        document = self._visible(completion)
        document["choices"] = [_without(choice, hidden) for choice in completion["choices"]]
        return document

    async def events(self, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[str]:
        """Yield the completion as server-sent events."""
        options, hidden = self.chat_body.get("stream_options"), self._hidden
        with_usage = isinstance(options, dict) and options.get("include_usage")
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    event = self._visible(chunk)
                    choices = [_without(choice, hidden) for choice in chunk.get("choices") or ()]
                    event["choices"] = [choice for choice in choices if _says_something(choice)]
                    if not with_usage:
                        event.pop("usage", None)
                    if event["choices"] or event.get("usage"):
                        yield f"data: {orjson.dumps(event).decode()}\n\n"
        except STREAM_ERRORS as error:
            yield f"data: {bytes(openai_error(status_of(error), str(error)).body).decode()}\n\n"
        else:
            yield "data: [DONE]\n\n"

    def _visible(self, reply: Mapping[str, Json]) -> dict[str, Json]:
        exact = bool(self.chat_body.get("return_token_ids"))
        return {name: value for name, value in reply.items() if exact or name != "prompt_token_ids"}

    @property
    def _hidden(self) -> frozenset[str]:
        """Fields of a choice that the client did not ask for."""
        parameters = {"token_ids": "return_token_ids", "logprobs": "logprobs"}
        return frozenset(name for name, parameter in parameters.items() if not self.chat_body.get(parameter))


def _without(choice: Mapping[str, Json], hidden: frozenset[str]) -> dict[str, Json]:
    return {name: value for name, value in choice.items() if name not in hidden}


def _says_something(choice: Mapping[str, Json]) -> bool:
    delta = choice.get("delta") or {}
    has_delta = any(value for name, value in delta.items() if name != "content") or bool(delta.get("content"))
    return has_delta or bool(choice.get("finish_reason") or choice.get("logprobs"))
