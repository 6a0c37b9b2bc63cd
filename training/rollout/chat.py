"""How a rollout reaches its model: chat completions in OpenAI's form."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from environment.base import Json
from training.backends.base import Endpoint

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice

_TOKEN_ID = "token_id:"
_RETRIES = 2
"""Of one request, on connection errors, 429 and 5xx, with the client's back-off."""


class Chat(Protocol):
    """A model that answers chat completions in OpenAI's form."""

    @property
    def model(self) -> str:
        """Its name in requests."""

    @property
    def remembers(self) -> bool:
        """As Endpoint.remembers: a rollout restarts after the endpoint was away."""

    @property
    def tells_token_ids(self) -> bool:
        """As Endpoint.tells_token_ids."""

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        """The response to a request, whose `model` is the name. Raises what the client raises."""


@dataclass(frozen=True, slots=True)
class EndpointChat:
    """An OpenAI client and the model that it asks."""

    client: "AsyncOpenAI"
    model: str
    remembers: bool = False
    tells_token_ids: bool = False

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        from openai.types.chat import ChatCompletion

        # Not `chat.completions.create`: it goes through every field of every message to translate what is as it should
        # be.
        return await self.client.post("/chat/completions", cast_to=ChatCompletion, body={**body, "logprobs": True})


@asynccontextmanager
async def open_chat(endpoint: Endpoint, concurrency: int = 1) -> AsyncIterator[EndpointChat]:
    """Connections to the endpoint for `concurrency` simultaneous requests, closed at the end."""
    import httpx
    from openai import AsyncOpenAI

    from training.rollout.http_transport import AiohttpTransport

    http = httpx.AsyncClient(
        limits=httpx.Limits(max_connections=concurrency),
        timeout=None,
        mounts={"http://": AiohttpTransport()},
        verify=endpoint.base_url.startswith("https"),  # reading the certificates takes 20 ms
    )
    async with AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        http_client=http,
        max_retries=0 if endpoint.remembers else _RETRIES,
    ) as client:
        yield EndpointChat(client, endpoint.model, endpoint.remembers, endpoint.tells_token_ids)


def message_of(choice: "Choice") -> dict[str, Json]:
    """The assistant message of a choice, as the next request repeats it."""
    message: dict[str, Json] = {"role": "assistant", "content": choice.message.content}
    if choice.message.tool_calls:
        message["tool_calls"] = [call.model_dump(mode="json") for call in choice.message.tool_calls]
    return message


def sampled_ids(choice: "Choice") -> list[int] | None:
    """The token ids of a reply, which its log-probabilities name; None where they do not."""
    tokens = choice.logprobs.content if choice.logprobs else None
    if tokens is None or not all(token.token.startswith(_TOKEN_ID) for token in tokens):
        return None
    return [int(token.token.removeprefix(_TOKEN_ID)) for token in tokens]


_written = json.JSONEncoder(sort_keys=True).encode
"""As json.dumps, which makes an encoder each time."""


def identity(message: Mapping[str, Json]) -> str:
    """What of a message the model sees: clients write the rest in their own way when they send it again."""
    calls = [
        [call.get("id"), call["function"]["name"], _value(call["function"]["arguments"])]
        for call in message.get("tool_calls") or []
        if "function" in call
    ]
    shown = [message.get("role"), message.get("content") or "", calls, message.get("tool_call_id")]
    return _written(shown)


def _value(arguments: Json) -> Json:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments
