"""HTTP to untrusted servers: answers are limited before they are decompressed, parsed or stored.

A few bytes of gzip can become gigabytes, so every request asks for an uncompressed body and a compressed one is
refused. A few megabytes of JSON can become a gigabyte of Python objects, so both bytes and JSON values can be limited.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

_STARTS = (b",", b"[", b"{")
"""Every JSON value except the outermost one follows one of these characters."""


class AnswerRefused(httpx.TransportError):
    """A server's answer is compressed or exceeds a limit; the message says which."""


class AnswerTooLarge(AnswerRefused):
    """A server's answer exceeds a limit."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits on one answer."""

    max_bytes: int
    max_values: int | None = None
    """Most JSON values, estimated by counting the characters that precede one, also inside strings. None: no limit."""


class BoundedTransport(httpx.AsyncBaseTransport):
    """Raises AnswerRefused instead of reading beyond the limits, regardless of which code reads the answer."""

    def __init__(self, inner: httpx.AsyncBaseTransport, limits: AnswerLimits) -> None:
        self._inner = inner
        self._limits = limits

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if (encoding := response.headers.get("content-encoding", "identity")).lower() != "identity":
            refused = AnswerRefused(
                f"the server's answer is compressed ({encoding[:20]}), which it was asked not to be"
            )
            self.note(refused)
            await response.aclose()
            raise refused
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Bounded(response.stream, self._limits, self.note)
        return response

    def note(self, refused: AnswerRefused) -> None:
        """Hook for users of a library that swallows the error."""

    async def aclose(self) -> None:
        await self._inner.aclose()


def json_values(text: bytes) -> int:
    """Return an upper bound of the number of values in the JSON text."""
    return 1 + sum(map(text.count, _STARTS))


def parse_retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks for (RFC 9110, 10.2.3: seconds or a date); None if absent or
    malformed."""
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        at = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())


class _Bounded(httpx.AsyncByteStream):
    def __init__(
        self, inner: httpx.AsyncByteStream, limits: AnswerLimits, note: Callable[[AnswerRefused], None]
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._note = note

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = values = 0
        async for chunk in self._inner:
            size += len(chunk)
            self._check(size, self._limits.max_bytes, "bytes")
            if self._limits.max_values is not None:
                values += sum(map(chunk.count, _STARTS))
                self._check(values, self._limits.max_values, "JSON values")
            yield chunk

    def _check(self, count: int, most: int, what: str) -> None:
        if count > most:
            refused = AnswerTooLarge(f"the server's answer has more than {most:,} {what}")
            self._note(refused)
            raise refused

    async def aclose(self) -> None:
        await self._inner.aclose()
