"""Transport of the MCP SDK to a server at a URL: only to addresses that the operator allows, and with limits on
answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import httpx
from pydantic import ValidationError

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import EpisodeFailed
from learnloop_service.environment.bounded_http import AnswerRefused, BoundedTransport
from learnloop_service.environment.first_line import first_line
from learnloop_service.environment.mcp.config import HttpServer
from learnloop_service.environment.mcp.limits import MESSAGE
from learnloop_service.environment.mcp.messages import message_in

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    from learnloop_service.environment.mcp.limits import Streams

_TIMEOUT = httpx.Timeout(30.0, read=None)
"""Without a read time-out, because each request decides how long its server can be silent, and an event stream can be
silent for long."""
_END_TIMEOUT_S = 2.0
"""Longest wait for the server to acknowledge the end of a session, in seconds."""


@asynccontextmanager
async def http_transport(server: HttpServer, access: Access) -> "AsyncIterator[Streams]":
    """Yield the streams of a session. Raises EpisodeFailed, AnswerRefused, and whatever httpx and the access raise."""
    import anyio
    from mcp.client.streamable_http import streamable_http_client

    headers = {header: access.secret(server.name, name) for header, name in server.headers.items()}
    transport = _SessionTransport(access.http_transport())
    async with (
        httpx.AsyncClient(transport=transport, headers=headers, timeout=_TIMEOUT, trust_env=False) as client,
        streamable_http_client(server.url, http_client=client) as (reader, writer, _),
        anyio.create_task_group() as tasks,
    ):
        whole, messages = anyio.create_memory_object_stream["SessionMessage | Exception"]()
        tasks.start_soon(_relay, reader, whole)
        tasks.start_soon(transport.until_refused)
        yield messages, writer
        tasks.cancel_scope.cancel()


async def _relay(
    received: "MemoryObjectReceiveStream[SessionMessage | Exception]",
    whole: "MemoryObjectSendStream[SessionMessage | Exception]",
) -> None:
    """Pass messages on. Raises EpisodeFailed for an answer that is not a message: the SDK would ignore it, and whoever
    waits for it would wait until the time-out."""
    from mcp.shared.message import SessionMessage

    async with whole:
        async for message in received:
            if isinstance(message, ValidationError):
                with suppress(ValidationError):
                    message = SessionMessage(message_in(message))
            if isinstance(message, Exception):
                raise EpisodeFailed(f"the MCP server sent a malformed message: {first_line(message)}")
            await whole.send(message)


class _SessionTransport(BoundedTransport):
    """Follows no redirect, although the SDK would within a host, and sends nothing after an answer was refused."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        super().__init__(inner, MESSAGE)
        self._refusal: AnswerRefused | None = None
        self._refused = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._refusal is not None:
            raise self._refusal
        if request.method == "DELETE":
            return await self._end_session(request)
        response = await super().handle_async_request(request)
        if response.is_redirect:
            await response.aclose()
            raise EpisodeFailed(f"the MCP server answered {response.status_code} with a redirect: give its final URL")
        return response

    async def until_refused(self) -> None:
        """Raise AnswerRefused as soon as an answer was refused; the SDK can merely log it and keep waiting."""
        await self._refused.wait()
        assert self._refusal is not None
        raise self._refusal

    async def _end_session(self, request: httpx.Request) -> httpx.Response:
        """End the session without waiting for a silent server or for the body of its answer."""
        async with asyncio.timeout(_END_TIMEOUT_S):
            response = await super().handle_async_request(request)
        await response.aclose()
        return httpx.Response(response.status_code)

    def note(self, refused: AnswerRefused) -> None:
        self._refusal = self._refusal or refused
        self._refused.set()
