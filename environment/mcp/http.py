"""A server at a URL as a transport of the MCP SDK: only to addresses that the operator allows, and bounded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx

from environment.access import Access
from environment.base import EpisodeFailed
from environment.bounded_http import AnswerRefused, BoundedTransport
from environment.mcp.config import HttpServer
from environment.mcp.limits import MESSAGE

if TYPE_CHECKING:
    from environment.mcp.limits import Streams

_TIMEOUT = httpx.Timeout(30.0, read=None)
"""How long a server may be silent is up to each request: an event stream may be for long."""
_GOODBYE_S = 2.0
"""How long the server may take to answer that the session ends."""


@asynccontextmanager
async def http_transport(server: HttpServer, access: Access) -> "AsyncIterator[Streams]":
    """The streams of a session. Raises EpisodeFailed, AnswerRefused, and what httpx and the access raise."""
    import anyio
    from mcp.client.streamable_http import streamable_http_client

    headers = {header: access.secret(server.name, name) for header, name in server.headers.items()}
    transport = _SessionTransport(access.http_transport())
    async with (
        httpx.AsyncClient(transport=transport, headers=headers, timeout=_TIMEOUT, trust_env=False) as client,
        streamable_http_client(server.url, http_client=client) as (reader, writer, _),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(transport.until_refused)
        yield reader, writer
        tasks.cancel_scope.cancel()


class _SessionTransport(BoundedTransport):
    """Follows no redirect, which the SDK would do within a host, and sends nothing more once an answer was refused."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        super().__init__(inner, MESSAGE, self._note)
        self._refusal: AnswerRefused | None = None
        self._refused = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._refusal is not None:
            raise self._refusal
        if request.method == "DELETE":
            return await self._say_goodbye(request)
        response = await super().handle_async_request(request)
        if response.is_redirect:
            await response.aclose()
            raise EpisodeFailed(f"the MCP server answered {response.status_code} with a redirect: give its final URL")
        return response

    async def until_refused(self) -> None:
        """Raises AnswerRefused as soon as an answer was refused: the SDK may log that only, and wait on."""
        await self._refused.wait()
        assert self._refusal is not None
        raise self._refusal

    async def _say_goodbye(self, request: httpx.Request) -> httpx.Response:
        """The end of a session waits neither for a silent server nor for the body of its answer."""
        async with asyncio.timeout(_GOODBYE_S):
            response = await super().handle_async_request(request)
        await response.aclose()
        return httpx.Response(response.status_code)

    def _note(self, refused: AnswerRefused) -> None:
        self._refusal = self._refusal or refused
        self._refused.set()
