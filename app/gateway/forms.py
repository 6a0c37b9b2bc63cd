"""The protocols in which an agent can ask its model: each one translates from and to chat completions."""

from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request, Response

from app.agent_sessions.calls import Asker
from app.agent_sessions.replay import Repetition
from app.aio.event_loops import shielded
from app.gateway.chunks import Chunk
from app.gateway.gateway import SessionGateway
from app.gateway.replies import Exchange, StreamedReply, WholeReply
from app.model_registry.proxy import unless_disconnected
from environment.json_type import Json

_CLIENT_DISCONNECTED = 499


class Asked(Protocol):
    """A request in one of the protocols."""

    @property
    def chat_body(self) -> dict[str, Json]:
        """The chat completion that it stands for."""

    @property
    def is_streamed(self) -> bool:
        """Whether the reply is to be streamed."""

    def document(self, completion: Mapping[str, Json]) -> dict[str, Json]:
        """The whole reply."""

    def events(self, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[str]:
        """The reply as server-sent events; what goes wrong is the last one."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """Who asks in which session, and how."""

    http: Request
    asker: Asker
    protocol: str

    @property
    def repetition(self) -> Repetition:
        """What the client says about earlier requests. The clients of OpenAI and Anthropic count their retries."""
        headers = self.http.headers
        count = headers.get("x-stainless-retry-count", "")
        return Repetition(count.isdecimal() and int(count) > 0, headers.get("idempotency-key"))


async def reply(gateway: SessionGateway, request: AgentRequest, asked: Asked) -> Response:
    """The reply to an agent. A client that disconnects ends the sampling. Raises as Exchange."""

    async def answered() -> Response:
        who, body, streamed = request.asker, asked.chat_body, asked.is_streamed
        exchange = await gateway.begin(who, body, request.protocol, request.repetition, is_streamed=streamed)
        return await _answered(exchange, asked)

    return await _unless_left(request.http, answered())


async def begun(exchange: Exchange, http: Request, asked: Asked) -> Response:
    """The reply of an exchange, which finishes it. Raises as Exchange."""
    return await _unless_left(http, _answered(exchange, asked))


async def _unless_left(http: Request, answered: Coroutine[Any, Any, Response]) -> Response:
    made = await unless_disconnected(http, answered)
    return Response(status_code=_CLIENT_DISCONNECTED) if made is None else made


async def _answered(exchange: Exchange, asked: Asked) -> Response:
    try:
        if not asked.is_streamed:
            return WholeReply(exchange, asked.document(await exchange.completion()))
        chunks = exchange.chunks()
        # What goes wrong before anything was sampled is an error like any other.
        return StreamedReply(exchange, asked.events(_with_first(await anext(chunks), chunks)))
    except BaseException:
        await shielded(exchange.finish(delivered=False))
        raise


async def _with_first(first: Chunk, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    try:
        yield first
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()
