"""HTTP to servers that are not trusted: what they answer is bounded before it is unpacked, parsed or kept.

A few bytes of gzip can become gigabytes, so a compressed body is refused: every request asks for none. A few megabytes
of JSON can become a gigabyte of Python objects, so the values of JSON can be bounded as well as the bytes.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx

_STARTS = (b",", b"[", b"{")
"""Each JSON value but the outermost one comes after one of these."""


class AnswerRefused(httpx.TransportError):
    """A server answered with a compressed body, or with more than is read; the message says which."""


class AnswerTooLarge(AnswerRefused):
    """A server answered with more than is read."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What is read of one answer, at most."""

    max_bytes: int
    max_values: int | None = None
    """Of JSON. The signs that separate values are counted, also within texts. None: any number."""


class BoundedTransport(httpx.AsyncBaseTransport):
    """Raises AnswerRefused instead of reading more than the limits allow, whoever reads the answer."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport,
        limits: AnswerLimits,
        on_refusal: Callable[[AnswerRefused], None] = lambda refused: None,
    ) -> None:
        """`on_refusal` is for callers of a library that swallows the error."""
        self._inner = inner
        self._limits = limits
        self._on_refusal = on_refusal

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        ask_uncompressed(request)
        response = await self._inner.handle_async_request(request)
        try:
            return bounded(response, self._limits, self._on_refusal)
        except AnswerRefused:
            await response.aclose()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


def ask_uncompressed(request: httpx.Request) -> None:
    """Ask the server not to compress its answer."""
    request.headers["accept-encoding"] = "identity"


def bounded(
    response: httpx.Response,
    limits: AnswerLimits,
    on_refusal: Callable[[AnswerRefused], None] = lambda refused: None,
) -> httpx.Response:
    """The response, whose body was not read yet, so that reading it is bounded. Raises AnswerRefused."""

    if (encoding := response.headers.get("content-encoding", "identity")).lower() != "identity":
        refused = AnswerRefused(f"the server's answer is compressed ({encoding[:20]}), which it was asked not to be")
        on_refusal(refused)
        raise refused
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _Bounded(response.stream, limits, on_refusal)
    return response


def json_values(text: bytes) -> int:
    """No fewer than the JSON text has."""
    return 1 + sum(map(text.count, _STARTS))


class _Bounded(httpx.AsyncByteStream):
    def __init__(
        self, inner: httpx.AsyncByteStream, limits: AnswerLimits, on_refusal: Callable[[AnswerRefused], None]
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._on_refusal = on_refusal

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
            self._on_refusal(refused)
            raise refused

    async def aclose(self) -> None:
        await self._inner.aclose()
