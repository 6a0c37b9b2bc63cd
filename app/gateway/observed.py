"""Requests outside of sessions whose replies a release counts."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from learnloop_service.app.db.database import Database
from learnloop_service.app.gateway.chunks import Assembly, Chunk
from learnloop_service.app.gateway.unrecorded import UnrecordedExchange
from learnloop_service.app.model_registry.proxy import CLIENT_DISCONNECTED
from learnloop_service.app.releases.exposures import AnswerObservation, failure_recorded, record
from learnloop_service.app.releases.split import Exposure
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.asks_back import asks_back
from learnloop_service.training.protocol.malformed_calls import is_malformed, is_malformed_response

_NO_ANSWER = (HTTPStatus.NOT_FOUND, CLIENT_DISCONNECTED)
"""Statuses below 500 of requests without an answer: the checkpoint is gone, or the client has left."""
_ANSWERED = ("completed", "incomplete")
"""Statuses of a response that has ended well."""


@dataclass(frozen=True, slots=True)
class ObservedExchange:
    """Asks the server, and records what the requester met before the reply, or its last part, leaves."""

    exchange: UnrecordedExchange
    database: Database
    exposure: Exposure
    begun_at: float = field(default_factory=time.monotonic)

    @property
    def headers(self) -> Mapping[str, str]:
        return self.exchange.headers

    async def completion(self) -> dict[str, Json]:
        """Return the completion. Raises the errors of Upstream."""
        async with failure_recorded(self.database, self.exposure):
            completion = await self.exchange.completion()
            await self._record(completion)
        return completion

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the completion as chunks. The exposure is recorded while the first one is sampled."""
        assembly, last = Assembly(), None
        exposing = asyncio.create_task(record(self.database, self.exposure, None))
        try:
            async with failure_recorded(self.database, self.exposure), aclosing(self.exchange.chunks()) as chunks:
                async for chunk in chunks:
                    assembly.add(chunk)
                    await exposing
                    if last is not None:
                        yield last
                    last = chunk
                await self._record(assembly.completion(), is_whole=assembly.is_whole)
            if last is not None:
                yield last
        finally:
            await asyncio.wait({exposing})

    async def finish(self, *, delivered: bool) -> None:
        """Do nothing, since everything is recorded by then."""

    async def _record(self, completion: Mapping[str, Json], *, is_whole: bool = True) -> None:
        observed = AnswerObservation(
            error=not is_whole,
            malformed=is_malformed(completion),
            seconds=time.monotonic() - self.begun_at,
            completion_tokens=(completion.get("usage") or {}).get("completion_tokens"),
            asks_back=asks_back(completion),
        )
        await record(self.database, self.exposure, observed)


async def observed_response(database: Database, exposure: Exposure, ask: Callable[[], Awaitable[Response]]) -> Response:
    """Return the reply of the Responses API for which `ask` asks the model's server, and record what it was like before
    its last part leaves. A reply that refuses the request is not counted."""
    begun_at = time.monotonic()
    async with failure_recorded(database, exposure):
        await record(database, exposure, None)
        reply = await ask()
    if isinstance(reply, StreamingResponse) and reply.status_code < HTTPStatus.BAD_REQUEST:
        reply.body_iterator = _observed(database, exposure, reply.body_iterator, begun_at)
    elif reply.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or reply.status_code in _NO_ANSWER:
        await record(database, exposure, AnswerObservation(error=True))
    return reply


async def _observed(
    database: Database, exposure: Exposure, pieces: AsyncIterable[Any], begun_at: float
) -> AsyncGenerator[bytes]:
    body, last = bytearray(), b""
    async with failure_recorded(database, exposure):
        async for piece in pieces:
            body += piece
            if last:
                yield last
            last = piece
        response = _response_in(bytes(body))
        observed = AnswerObservation(
            error=response.get("status") not in _ANSWERED,
            malformed=is_malformed_response(response),
            seconds=time.monotonic() - begun_at,
            completion_tokens=(response.get("usage") or {}).get("output_tokens"),
            asks_back=asks_back(response),
        )
        await record(database, exposure, observed)
    yield last


def _response_in(body: bytes) -> Mapping[str, Json]:
    """Return the response in a reply: the reply itself, or the one in the last event of a stream; empty if there is
    none, as in an error's event."""
    try:
        document = json.loads(body.strip().rpartition(b"\n")[2].removeprefix(b"data: "))
    except ValueError:
        return {}
    response = document.get("response", document) if isinstance(document, dict) else {}
    return response if isinstance(response, dict) else {}
