"""HTTP/1.1 without TLS for httpx: many simultaneous requests to a few servers, such as our engine.

httpx's own transport looks at all its idle connections for each request and each response, and parses in Python: a
request takes ten times the processor time that it takes here. Here llhttp parses, as in uvicorn.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator

import httptools
import httpx

_KEPT_S = 4.0
"""So long a connection rests at most: servers close theirs after 5 s (uvicorn) or more, and what is sent just then is
lost."""
_MOST_HEAD_BYTES = 100_000
_MOST_UNREAD_BYTES = 100_000
_LINE_END = re.compile(rb"[\r\n]")

Where = tuple[str, int]


class PlainHttp(httpx.AsyncBaseTransport):
    """Each request has a connection to itself; those that rest are used again, the youngest one first."""

    def __init__(self) -> None:
        self._resting: defaultdict[Where, list[_Connection]] = defaultdict(list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD" or "transfer-encoding" in request.headers:
            raise httpx.UnsupportedProtocol("only requests with a body of known length, whose replies may have one")
        timeout = request.extensions.get("timeout", {})
        where = request.url.raw_host.decode(), request.url.port or 80
        message = _head(request) + await request.aread()
        connection = self._rested(where) or await _connected(where, timeout.get("connect"))
        try:
            status, headers = await connection.ask(message, timeout.get("read"))
        except BaseException:
            connection.close()
            raise
        return httpx.Response(status, headers=headers, stream=_Body(connection, self._resting[where]))

    async def aclose(self) -> None:
        for resting in self._resting.values():
            while resting:
                resting.pop().close()

    def _rested(self, where: Where) -> "_Connection | None":
        resting = self._resting[where]
        while resting:
            connection = resting.pop()
            if connection.is_fresh:
                return connection
            connection.close()
        return None


class _Body(httpx.AsyncByteStream):
    """Of a response. If it was read to its end, its connection goes to those that rest."""

    def __init__(self, connection: "_Connection", resting: "list[_Connection]") -> None:
        self._connection: _Connection | None = connection
        self._resting = resting

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None and (piece := await self._connection.piece()):
            yield piece

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.rest():
            self._resting.append(connection)
        else:
            connection.close()
        while self._resting and not self._resting[0].is_fresh:
            self._resting.pop(0).close()


class _Connection(asyncio.Protocol):
    """One exchange at a time. The methods `on_...` are the parser's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._read_s: float | None = None
        self._change: asyncio.Future[None] | None = None
        self._rests_since: float | None = self._loop.time()
        """None: it was asked something, whose answer was not taken to its end."""
        self._failure: httpx.TransportError | None = None
        self._clear()

    def _clear(self) -> None:
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._unread = 0
        self._ended = self._keep = self._ends_with_connection = False

    async def ask(self, message: bytes, read_s: float | None) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Status and headers of the answer."""
        self._clear()
        self._rests_since, self._read_s = None, read_s
        self._transport.write(message)
        while not self._status:
            await self._changed()
        return self._status, self._headers

    async def piece(self) -> bytes:
        """What came of the answer's body since; empty: it has ended."""
        while not self._pieces and not self._ended:
            await self._changed()
        come = b"".join(self._pieces)
        self._pieces.clear()
        if self._unread > _MOST_UNREAD_BYTES and not self._transport.is_closing():
            self._transport.resume_reading()
        self._unread = 0
        return come

    def rest(self) -> bool:
        """Whether it can be used again."""
        if self._ended and self._keep:
            self._rests_since = self._loop.time()
        return self._rests_since is not None

    @property
    def is_fresh(self) -> bool:
        """Whether it still rests and the server surely keeps it."""
        since = self._rests_since
        return since is not None and not self._transport.is_closing() and self._loop.time() - since < _KEPT_S

    def close(self) -> None:
        self._transport.abort()

    async def _changed(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._change = self._loop.create_future()
        try:
            async with asyncio.timeout(self._read_s):
                await self._change
        except TimeoutError:
            raise httpx.ReadTimeout("the server says nothing") from None
        finally:
            self._change = None

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def _fail(self, failure: httpx.TransportError) -> None:
        self._failure = self._failure or failure
        self._transport.abort()
        self._wake()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as it is for TCP
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"the server's answer is not HTTP/1.1: {error}"))
        if self._status:
            self._wake()
        elif (head_bytes := self._head_bytes + len(data)) <= _MOST_HEAD_BYTES:
            self._head_bytes = head_bytes
        else:
            self._fail(httpx.RemoteProtocolError("the head of the server's answer is too large"))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._fail(httpx.ReadError(str(exc)))
        elif self._ends_with_connection:
            self._ended = True
            self._wake()
        else:
            self._fail(httpx.RemoteProtocolError("the server closed the connection before the end of its answer"))

    def on_message_begin(self) -> None:
        if self._status:
            raise httptools.HttpParserError("nothing more was asked")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # the answer is still to come
            return
        self._status, self._keep = status, self._parser.should_keep_alive()
        framed = {name.lower() for name, _ in self._headers} & {b"content-length", b"transfer-encoding"}
        self._ends_with_connection = not framed

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        if self._unread <= _MOST_UNREAD_BYTES < self._unread + len(body):
            self._transport.pause_reading()
        self._unread += len(body)

    def on_message_complete(self) -> None:
        self._ended = self._status != 0


def _head(request: httpx.Request) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in request.headers.raw]
    if any(map(_LINE_END.search, lines)):
        raise httpx.LocalProtocolError("a header holds the end of a line")
    return b"\r\n".join([*lines, b"", b""])


async def _connected(where: Where, timeout_s: float | None) -> _Connection:
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, *where)
    except TimeoutError as error:
        raise httpx.ConnectTimeout("the server does not accept a connection") from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
    return connection
