"""Notices connections that the network forgot: nothing arrives on them any more, and neither side learns of it.

The operating system's keepalive ends such a connection if the peer's machine no longer answers. Behind a proxy or a
balancer that stays up, only the server can say whether it still works on a request, so it is asked.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

import httpx

from learnloop.http_settings import tls
from learnloop_service.training.protocol.underway import HEADER, PATH

_FIRST_CHECK_S = 8.0
_CHECK_S = 4.0
_BYTES_PER_S = 1e6
"""Slowest connection over which a request's body is expected to arrive."""
_ANSWER_S = 5.0
_UNREACHABLE = 4
"""Number of consecutive checks without an answer after which the server counts as away."""
_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}
"""Options of a connection, as far as the operating system has them, in seconds, seconds, probes and milliseconds."""


def keepalive() -> list[tuple[int, int, int]]:
    """Return the socket options with which a connection ends about 15 s after its peer's last sign of life."""
    named = [(getattr(socket, name, None), value) for name, value in _ALIVE.items()]
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in named if option is not None),
    ]


def kept_alive_mounts(base_url: str, limits: httpx.Limits, proxy: str | None) -> dict[str, httpx.AsyncBaseTransport]:
    """Return httpx's transport for the URL's scheme, through a proxy if there is one, with `keepalive`."""
    scheme = httpx.URL(base_url).scheme
    transport = httpx.AsyncHTTPTransport(
        limits=limits,
        verify=tls() if scheme == "https" else False,
        trust_env=False,
        proxy=proxy,
        socket_options=keepalive(),
    )
    return {f"{scheme}://": transport}


class WatchedTransport(httpx.AsyncBaseTransport):
    """Ends requests that the server no longer works on. Requests with the extension `watched` set to False, and those
    to servers that cannot say it, are left alone."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self._first_check_s = _FIRST_CHECK_S
        self._check_s = _CHECK_S

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.extensions.get("watched", True):
            return await self._inner.handle_async_request(request)
        id = request.headers[HEADER] = token_hex(8)
        try:
            async with asyncio.timeout(None) as limit:
                with self._watched(request, id, limit):
                    return await self._inner.handle_async_request(request)
        except TimeoutError as error:
            raise httpx.ReadTimeout("the connection was lost without notice") from error

    @contextmanager
    def _watched(self, request: httpx.Request, id: str, limit: asyncio.Timeout) -> Iterator[None]:
        """Watch a request that takes long. A task for each request would cost a session's calls more than they need."""
        loop, watching = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        wait_s = self._first_check_s + float(request.headers.get("content-length", 0)) / _BYTES_PER_S
        timer = loop.call_later(wait_s, lambda: watching.append(loop.create_task(self._watch(request, id, limit))))
        try:
            yield
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()

    async def _watch(self, request: httpx.Request, id: str, limit: asyncio.Timeout) -> None:
        """Let the limit expire as soon as the request is lost. A reply can be on its way when the server says that it
        does not work on the request, so it says it twice."""
        url = request.url.copy_with(path=f"{PATH}/{id}", query=None)
        authorization = {"authorization": request.headers.get("authorization", "")}
        silent = missing = 0
        verify = tls() if url.scheme == "https" else False
        limits = httpx.Limits(max_keepalive_connections=0)  # an idle connection can be a forgotten one
        async with httpx.AsyncClient(timeout=_ANSWER_S, limits=limits, verify=verify, trust_env=False) as http:
            while missing < 2 and silent < _UNREACHABLE:
                try:
                    reply = await http.get(url, headers=authorization)
                except httpx.TransportError:
                    silent += 1
                else:
                    if reply.status_code != 200:
                        return  # the server cannot say it
                    silent, missing = 0, 0 if reply.json()["underway"] else missing + 1
                await asyncio.sleep(self._check_s)
        limit.reschedule(asyncio.get_running_loop().time())

    async def aclose(self) -> None:
        await self._inner.aclose()
