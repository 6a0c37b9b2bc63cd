"""Replies to agents in several protocols, each translated to and from chat completions."""

from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request, Response

from learnloop_service.app.agent_sessions.calls import SessionCaller
from learnloop_service.app.agent_sessions.replay import Repetition
from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.gateway.chunks import Chunk
from learnloop_service.app.gateway.gateway import SessionGateway
from learnloop_service.app.gateway.replies import Exchange, StreamedReply, WholeReply
from learnloop_service.app.model_registry.proxy import CLIENT_DISCONNECTED, unless_disconnected
from learnloop_service.environment.json_type import Json


class GatewayRequest(Protocol):
    """A request in one of the protocols."""

    @property
    def chat_body(self) -> dict[str, Json]:
        """The equivalent chat completion request."""

    @property
    def warnings(self) -> Sequence[str]:
        """Parts of the request without an effect, a sentence for each; parameters of `chat_body` are not among them."""

    @property
    def is_streamed(self) -> bool:
        """Whether to stream the reply."""

    def document(self, completion: Mapping[str, Json]) -> dict[str, Json]:
        """Return the whole reply."""

    def events(self, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[str]:
        """Yield the reply as server-sent events. An error becomes the last event."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """An agent's HTTP request, with its session and protocol."""

    http: Request
    asker: SessionCaller
    protocol: str

    @property
    def repetition(self) -> Repetition:
        """What the client says about repeating earlier requests. The clients of OpenAI and Anthropic count their
        retries."""
        headers = self.http.headers
        count = headers.get("x-stainless-retry-count", "")
        return Repetition(count.isdecimal() and int(count) > 0, headers.get("idempotency-key"))


async def reply(gateway: SessionGateway, request: AgentRequest, gateway_request: GatewayRequest) -> Response:
    """Reply to an agent. Sampling ends if the client disconnects. Raises the errors of SessionGateway.begin and
    Exchange."""

    async def answered() -> Response:
        who, body, streamed = request.asker, gateway_request.chat_body, gateway_request.is_streamed
        exchange = await gateway.begin(
            who, body, request.protocol, request.repetition, is_streamed=streamed, warnings=gateway_request.warnings
        )
        return await _make_reply(exchange, gateway_request)

    return await _until_disconnect(request.http, answered())


async def begun(exchange: Exchange, http: Request, gateway_request: GatewayRequest) -> Response:
    """Send the reply of an exchange and finish it. Raises the errors of Exchange."""
    return await _until_disconnect(http, _make_reply(exchange, gateway_request))


async def _until_disconnect(http: Request, answered: Coroutine[Any, Any, Response]) -> Response:
    response = await unless_disconnected(http, answered)
    return Response(status_code=CLIENT_DISCONNECTED) if response is None else response


async def _make_reply(exchange: Exchange, gateway_request: GatewayRequest) -> Response:
    try:
        if not gateway_request.is_streamed:
            return WholeReply(exchange, gateway_request.document(await exchange.completion()))
        chunks = exchange.chunks()
        # An error before the first chunk becomes an ordinary error reply.
        return StreamedReply(exchange, gateway_request.events(_with_first(await anext(chunks), chunks)))
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
