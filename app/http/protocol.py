"""uvicorn's HTTP protocol with limits on how much a client can make it store and how long it can make it wait.

uvicorn itself accepts any number and size of headers and trailers, over any time. It keeps parsing requests while
replies are waiting to be read, and it waits forever for the rest of a body and for its replies to be read.
"""

import asyncio
from enum import Enum, auto
from typing import Any

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from learnloop_service.app.http.connections import Connections

MAX_HEAD_BYTES = 65_536
"""Maximum size of the request line and headers together. Trailers and the framing of chunks can take as much again."""
MAX_HEADERS = 100
"""Maximum number of headers and trailers."""
MAX_FRAMING = 8
"""Additional framing bytes allowed per byte of a chunked body, because a chunk can be a single byte."""
MAX_DISCARDED_BYTES = 2_000_000
"""Maximum size of a body whose request was answered before the whole body had arrived."""
_END_OF_HEAD = b"\r\n\r\n"
_HEALTH = "/health/"


class _Next(Enum):
    """What the next byte is part of."""

    REQUEST = auto()
    HEAD = auto()
    BODY = auto()


class BoundedHttp(HttpToolsProtocol):
    """One HTTP connection."""

    head_s = 20.0
    """Maximum time to the end of the head, from the connection or from the head's first byte."""
    body_s = 20.0
    """Maximum time for a body, in addition to the time for its bytes."""
    body_bytes_per_s = 10_000
    unread_s = 60.0
    """Maximum time in which a client reads nothing that it was sent."""

    def __init__(self, *args: Any, connections: Connections, **more: Any) -> None:
        super().__init__(*args, **more)
        self._open = connections
        self._health_only = False
        self._received = b""
        self._parsed = 0
        """Number of these bytes that the parser has received. The rest waits until the current request is answered."""
        self._next = _Next.REQUEST
        self._head_bytes = self._headers = self._framed_bytes = self._body_bytes = 0
        self._body_began = 0.0
        self._deadline_of: _Next | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if not self._open.admit(self, self.client[0] if self.client else ""):
            self._health_only = True
            self.app = _HealthOnly(self.config.loaded_app)
        self._deadline_of, self._deadline = _Next.HEAD, self.loop.call_later(self.head_s, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.remove(self)
        self._received = b""
        self._end_deadline()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close the connection so that `Connections` can admit another."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._received:
            if self._next is _Next.REQUEST and not self._replying:
                data = data.lstrip(b"\r\n")  # line ends are allowed between requests, but do not count as activity
            self._received = data
        else:
            self._received = self._received[self._parsed :] + data
            self._parsed = 0
        if self._received:
            self._parse()

    @property
    def _replying(self) -> bool:
        """Whether a complete request has arrived that is not answered yet."""
        return self._next is not _Next.BODY and self.cycle is not None and not self.cycle.response_complete

    def _parse(self) -> None:
        """Parse up to the end of one request. The parser cannot be stopped, so it gets one head at a time."""
        while self._parsed < len(self._received) and not self._replying and not self.transport.is_closing():
            end = self._received.find(_END_OF_HEAD, self._parsed)
            end = len(self._received) if end < 0 else end + len(_END_OF_HEAD)
            piece, self._parsed = self._received[self._parsed : end], end
            if self._next is _Next.BODY:
                self._framed_bytes += len(piece)
            elif (total := self._head_bytes + len(piece)) <= MAX_HEAD_BYTES:
                self._head_bytes = total
            else:
                self.send_400_response("The request's head is too large.")
                break
            super().data_received(piece)
            if self._framed_bytes - self._body_bytes > MAX_HEAD_BYTES + MAX_FRAMING * self._body_bytes:
                self.send_400_response("The request's body has too much around its bytes.")
        if self._parsed < len(self._received) and not self.transport.is_closing():
            self.flow.pause_reading()
        else:
            self._received, self._parsed = b"", 0
        self._set_deadline()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._next, self._headers = _Next.HEAD, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise httptools.HttpParserError("too many headers")
        if self._next is _Next.HEAD:  # otherwise it is an unused trailer
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise httptools.HttpParserError("a request has one Host header (RFC 9112, 3.2)")
        self._next, self._body_bytes, self._framed_bytes, self._body_began = _Next.BODY, 0, 0, self.loop.time()
        self._open.busy(self)
        super().on_headers_complete()
        if self._health_only:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete and self._body_bytes > MAX_DISCARDED_BYTES:
            self.transport.close()

    def on_message_complete(self) -> None:
        self._next, self._head_bytes = _Next.REQUEST, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._set_read_deadline()
        if not self._replying:
            self._open.idle(self)
            self._parse()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_read_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Send an error unless a reply has begun, and close the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(message) + message.encode())
        self.transport.close()

    def _set_deadline(self) -> None:
        """Set the deadline of an incomplete head or body. Between requests, uvicorn's own timeout applies."""
        waits_for = None if self._replying or self._next is _Next.REQUEST else self._next
        if waits_for is self._deadline_of or (self.cycle is None and self._next is _Next.REQUEST):
            return
        self._end_deadline()
        self._deadline_of = waits_for
        if waits_for is _Next.HEAD:
            self._deadline = self.loop.call_later(self.head_s, self.transport.close)
        elif waits_for is _Next.BODY:
            self._check_body()

    def _check_body(self) -> None:
        due = self._body_began + self.body_s + self._body_bytes / self.body_bytes_per_s
        if (left_s := due - self.loop.time()) > 0:
            self._deadline = self.loop.call_later(left_s, self._check_body)
        else:
            self._refuse(408, "The request's body took too long.")

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._deadline_of = None

    def _set_read_deadline(self) -> None:
        """Close the connection if the client reads none of the pending output for a while."""
        if self._unread is not None:
            self._unread.cancel()
        waiting = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self.unread_s, self._check_reading, waiting)

    def _check_reading(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() >= waited:
            self.transport.abort()
        else:
            self._set_read_deadline()


_OWN = {"close_idle"}
_GONE = sorted(
    name
    for name, member in vars(BoundedHttp).items()
    if callable(member) and not name.startswith("_") and name not in _OWN and not hasattr(HttpToolsProtocol, name)
)
if _GONE:  # not an assertion, which `python -O` leaves out
    raise ImportError(f"this release of uvicorn has no {', '.join(_GONE)}, so the limits of requests would not hold")


class _HealthOnly:
    """ASGI application for connections beyond the limit."""

    def __init__(self, app: Any) -> None:
        self._app: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admitted = scope["path"].startswith(_HEALTH)
        app: Any = self._app if admitted else service_unavailable
        await app(scope, receive, send)
