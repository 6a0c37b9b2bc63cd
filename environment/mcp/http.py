"""A server at a URL as a transport of the MCP SDK: only to addresses that the operator allows, and bounded."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx

from environment.access import Access
from environment.base import EpisodeFailed
from environment.mcp.config import HttpServer
from environment.mcp.limits import MAX_SESSION_BYTES, too_much

if TYPE_CHECKING:
    from environment.mcp.limits import Streams

_TIMEOUT = httpx.Timeout(30.0, read=None)
"""How long a server may be silent is up to each request: an event stream may be for long."""


@asynccontextmanager
async def http_transport(server: HttpServer, access: Access) -> "AsyncIterator[Streams]":
    """The streams of a session. Raises EpisodeFailed, and what httpx and the access raise."""
    from mcp.client.streamable_http import streamable_http_client

    headers = {header: access.secret(server.name, name) for header, name in server.headers.items()}
    transport = _BoundedTransport(access.http_transport())
    async with (
        httpx.AsyncClient(transport=transport, headers=headers, timeout=_TIMEOUT, trust_env=False) as client,
        streamable_http_client(server.url, http_client=client) as (reader, writer, _),
    ):
        yield reader, writer


class _BoundedTransport(httpx.AsyncBaseTransport):
    """Follows no redirect, which the SDK would do within a host, and counts what comes back."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self._left = MAX_SESSION_BYTES

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if response.is_redirect:
            await response.aclose()
            raise EpisodeFailed(f"the MCP server answered {response.status_code} with a redirect: give its final URL")
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Counted(response.stream, self._take)
        return response

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise too_much()

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, take: Callable[[int], None]) -> None:
        self._inner = inner
        self._take = take

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._take(len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
