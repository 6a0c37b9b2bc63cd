"""Replies to an agent: sent to their end, or known not to have been."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import orjson
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.aio.event_loops import shielded
from app.gateway.chunks import Chunk
from app.model_registry.proxy import unless_disconnected
from environment.json_type import Json

_REPLAYED = {"Idempotency-Replayed": "true"}


class Exchange(Protocol):
    """A request and the answer of its model, until the reply has been sent."""

    @property
    def is_replay(self) -> bool:
        """Whether the answer was recorded before."""

    async def completion(self) -> dict[str, Json]:
        """The answer. Raises what becomes an error reply."""

    def chunks(self) -> AsyncGenerator[Chunk]:
        """The same as a stream."""

    async def finish(self, *, delivered: bool) -> None:
        """The reply has been sent, which waits for nothing, or will not be."""


class _Finishing(Response):
    """Finishes the exchange when it has been sent, or the client has left."""

    exchange: Exchange
    ended = True
    """Whether the end of the body was handed over."""

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All of it, unless the client leaves."""
        await super().__call__(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = False
        try:
            await self.send(scope, receive, send)
            arrived = self.ended
        finally:
            finished = self.exchange.finish(delivered=arrived)
            await (finished if arrived else shielded(finished))  # a task of its own for each reply takes 0.1 ms


class WholeReply(_Finishing):
    """A document."""

    def __init__(self, exchange: Exchange, document: Mapping[str, Json]) -> None:
        headers = _REPLAYED if exchange.is_replay else None
        super().__init__(orjson.dumps(document), headers=headers, media_type="application/json")
        self.exchange = exchange


class StreamedReply(_Finishing, StreamingResponse):
    """Server-sent events."""

    def __init__(self, exchange: Exchange, events: AsyncGenerator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        if exchange.is_replay:
            headers |= _REPLAYED
        super().__init__(self._noted(events), media_type="text/event-stream", headers=headers)
        self.exchange = exchange
        self.ended = False

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """In the task that asks: Starlette has two more for it."""
        await unless_disconnected(Request(scope, receive), self.stream_response(send))

    async def _noted(self, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
        try:
            async for event in events:
                yield event
            self.ended = True
        finally:
            await asyncio.shield(events.aclose())
