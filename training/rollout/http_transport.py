"""An httpx transport on aiohttp, for many simultaneous requests to a few servers over plain HTTP, such as our engine.

httpx's own transport scans all its idle connections for each request and each response, and parses in Python. A request
takes it five times the processor time of aiohttp, whose parser is llhttp.
"""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from learnloop_service.training.lost_connections import keepalive

if TYPE_CHECKING:
    from ssl import SSLContext

    from aiohttp import ClientResponse, ClientSession

_KEEP_ALIVE_S = 4.0
"""Maximum idle time of a connection. Servers close theirs after 5 s (uvicorn) or more, and a request sent at that
moment is lost."""
_HEADERS_OF_AIOHTTP = {"content-length", "transfer-encoding"}
_SKIPPED_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add to a request without them."""


def client_session(ssl: "SSLContext | bool" = True) -> "ClientSession":
    """Return a session with unlimited connections, which reuses idle ones."""
    import aiohttp  # imported late: it takes 0.1 s and 11 MB, and a service may never need it

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEP_ALIVE_S, ssl=ssl, socket_factory=_kept_alive_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def _kept_alive_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    connection = socket.socket(family, kind, protocol)
    for option in keepalive():
        connection.setsockopt(*option)
    return connection


class AiohttpTransport(httpx.AsyncBaseTransport):
    """A transport with its own `client_session`, opened on the first request."""

    def __init__(self) -> None:
        self._session: ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        import aiohttp
        from yarl import URL

        if self._session is None:
            self._session = client_session()
        limits = request.extensions.get("timeout", {})
        body = await request.aread()
        with _translate_errors():
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=[header for header in request.headers.multi_items() if header[0] not in _HEADERS_OF_AIOHTTP],
                skip_auto_headers=_SKIPPED_AUTO_HEADERS,
                data=body or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(sock_connect=limits.get("connect"), sock_read=limits.get("read")),
            )
        return httpx.Response(response.status, headers=response.raw_headers, stream=_Body(response))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: "ClientResponse") -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for piece in self._response.content.iter_any():
                yield piece

    async def aclose(self) -> None:
        self._response.close()  # This also closes the connection if the body was not read to its end.


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate aiohttp's errors into httpx's. Only a request that was certainly not sent raises ConnectError or
    ConnectTimeout, so that the caller can send it again."""
    import aiohttp

    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error)) from error
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except aiohttp.ClientOSError as error:
        raise httpx.ReadError(str(error)) from error
    except aiohttp.ClientError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except ValueError as error:
        raise httpx.LocalProtocolError(str(error)) from error
