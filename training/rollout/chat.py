"""How a rollout reaches its model: chat completions in OpenAI's form."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from learnloop.http_settings import proxy_of
from learnloop_service.environment.base import Json
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.protocol.chat_reader import arguments_value

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice

TOKEN_ID = "token_id:"
"""What precedes the id where a log-probability names its token by it."""
_RETRIES = 2
"""Number of retries of one request on connection errors, 429 and 5xx, with the client's back-off."""


_CONNECT_S = 10.0


class Chat(Protocol):
    """A model that answers chat completions in OpenAI's form."""

    @property
    def model(self) -> str:
        """The model's name in requests."""

    @property
    def remembers(self) -> bool:
        """Same as Endpoint.remembers. If true, a rollout restarts after the endpoint was unreachable."""

    @property
    def tells_token_ids(self) -> bool:
        """Same as Endpoint.tells_token_ids."""

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        """Return the completion for a request, whose `model` is this model's name. Raises the client's errors."""


@dataclass(frozen=True, slots=True)
class EndpointChat:
    """An OpenAI client and the name of its model."""

    client: "AsyncOpenAI"
    model: str
    remembers: bool = False
    tells_token_ids: bool = False

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        from openai.types.chat import ChatCompletion

        # `chat.completions.create` is not used because it walks every field of every message to transform what already
        # has the right form.
        return await self.client.post("/chat/completions", cast_to=ChatCompletion, body={**body, "logprobs": True})


@asynccontextmanager
async def open_chat(endpoint: Endpoint, concurrency: int = 1) -> AsyncIterator[EndpointChat]:
    """Open a client for `concurrency` simultaneous requests to the endpoint, and close it at the end."""
    import httpx
    from openai import AsyncOpenAI

    from learnloop_service.training.lost_connections import WatchedTransport, kept_alive_mounts
    from learnloop_service.training.rollout.http_transport import AiohttpTransport

    limits = httpx.Limits(max_connections=concurrency)
    proxy = None if endpoint.remembers else proxy_of(endpoint.base_url)  # our engine can be on another machine
    mounts = kept_alive_mounts(endpoint.base_url, limits, proxy)
    if proxy is None:
        mounts |= {"http://": AiohttpTransport()}
    if endpoint.remembers:
        mounts = {scheme: WatchedTransport(transport) for scheme, transport in mounts.items()}
    http = httpx.AsyncClient(
        limits=limits,
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
        mounts=mounts,
        verify=False,  # nothing passes by the mounts, and loading the certificates takes 20 ms
        trust_env=False,
    )
    async with AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        http_client=http,
        max_retries=0 if endpoint.remembers else _RETRIES,
    ) as client:
        yield EndpointChat(client, endpoint.model, endpoint.remembers, endpoint.tells_token_ids)


def message_of(choice: "Choice") -> dict[str, Json]:
    """Return the assistant message of a choice in the form in which the next request repeats it."""
    message: dict[str, Json] = {"role": "assistant", "content": choice.message.content}
    if choice.message.tool_calls:
        message["tool_calls"] = [call.model_dump(mode="json") for call in choice.message.tool_calls]
    return message


def sampled_ids(choice: "Choice") -> list[int] | None:
    """Return the token ids of a reply from its log-probabilities, or None if these do not name them."""
    tokens = choice.logprobs.content if choice.logprobs else None
    if tokens is None or not all(token.token.startswith(TOKEN_ID) for token in tokens):
        return None
    return [int(token.token.removeprefix(TOKEN_ID)) for token in tokens]


_canonical_json = json.JSONEncoder(sort_keys=True).encode
"""Same as json.dumps, without a new encoder for each call."""


def identity(message: Mapping[str, Json]) -> str:
    """Return the parts of a message that the model sees, as text. Clients vary the rest when they send a message
    again."""
    calls = [
        [call.get("id"), call["function"]["name"], arguments_value(call["function"]["arguments"])]
        for call in message.get("tool_calls") or []
        if "function" in call
    ]
    visible = [message.get("role"), message.get("content") or "", calls, message.get("tool_call_id")]
    return _canonical_json(visible)
