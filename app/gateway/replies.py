"""HTTP replies to agents, which record whether they were sent completely."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import orjson
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.gateway.chunks import Chunk
from learnloop_service.app.model_registry.proxy import unless_disconnected
from learnloop_service.environment.json_type import Json


class Exchange(Protocol):
    """A request and the model's answer, until the reply has been sent."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the reply."""

    async def completion(self) -> dict[str, Json]:
        """Return the answer. Raises the errors that become error replies."""

    def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the answer as chunks."""

    async def finish(self, *, delivered: bool) -> None:
        """Finish the exchange. `delivered` says whether the whole reply was sent; if it was, this does not wait for
        anything."""


class _Finishing(Response):
    """Finishes the exchange when the reply has been sent or the client has left."""

    exchange: Exchange
    ended = True
    """Whether the body was sent to its end."""

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole reply, unless the client leaves."""
        await super().__call__(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = False
        try:
            await self.send(scope, receive, send)
            arrived = self.ended
        finally:
            finished = self.exchange.finish(delivered=arrived)
            await (finished if arrived else shielded(finished))  # a separate task for each reply would take 0.1 ms


class WholeReply(_Finishing):
    """A reply with one JSON document."""

    def __init__(self, exchange: Exchange, document: Mapping[str, Json]) -> None:
        super().__init__(orjson.dumps(document), headers=exchange.headers, media_type="application/json")
        self.exchange = exchange


class StreamedReply(_Finishing, StreamingResponse):
    """A reply with server-sent events."""

    def __init__(self, exchange: Exchange, events: AsyncGenerator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **exchange.headers}
        super().__init__(self._noted(events), media_type="text/event-stream", headers=headers)
        self.exchange = exchange
        self.ended = False

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply in the current task. Starlette would start two more."""
        await unless_disconnected(Request(scope, receive), self.stream_response(send))

    async def _noted(self, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
        try:
            async for event in events:
                yield event
            self.ended = True
        finally:
            await asyncio.shield(events.aclose())
