"""The actions of an operation, written once for the sync and the async client.

An operation is a generator. It yields actions (send this, wait, read the next line of the stream) and receives the
result of each, or a transport error is raised in it; its return value is its result. SyncSteps and AsyncSteps perform
the actions of any operation, without and with `await`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

Result = TypeVar("Result")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; the result is the response, read whole."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request and keep its response open as the stream, in place of an earlier one; the result is the response.

    An unsuccessful response is read whole.
    """

    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReadLine:
    """Read the next line of the stream; the result is None at its end."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for a number of seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit(Generic[Item]):
    """Yield this item to the caller, who is iterating over a feed."""

    item: Item


Step = Send | Open | ReadLine | Wait
Operation = Generator[Step, Any, Result]
Feed = Generator[Step | Emit[Item], Any, None]


class _Lines:
    """Splits the pieces of a stream into lines. Only a line feed ends a line: httpx also splits at other characters,
    which a message can contain."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, piece: bytes) -> list[str]:
        """Return the lines that end in this piece."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [line.removesuffix(b"\r").decode() for line in whole]


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    lines = _Lines()
    for piece in pieces:
        yield from lines.take(piece)


async def _async_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    lines = _Lines()
    async for piece in pieces:
        for line in lines.take(piece):
            yield line


def _single_item_feed(operation: Operation[Result]) -> Feed[Result]:
    """Return a feed whose only item is the operation's result."""
    yield Emit((yield from operation))


class SyncSteps:
    """Performs actions with a blocking HTTP client."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def run(self, operation: Operation[Result]) -> Result:
        """Return the operation's result."""
        [result] = self.iterate(_single_item_feed(operation))
        return result

    def iterate(self, feed: Feed[Item]) -> Iterator[Item]:
        """Yield the items that the feed emits."""
        with ExitStack() as stack:
            performer = _Sync(self.http, stack)
            reply: Any = None
            error: httpx.TransportError | None = None
            while True:
                try:
                    step = feed.send(reply) if error is None else feed.throw(error)
                except StopIteration:
                    return
                reply = error = None
                if isinstance(step, Emit):
                    yield step.item
                    continue
                try:
                    reply = performer.perform(step)
                except httpx.TransportError as failure:
                    error = failure


class _Sync:
    """Holds the stream of one operation, if it has one open."""

    def __init__(self, http: httpx.Client, stack: ExitStack) -> None:
        self._http, self._stack = http, stack
        self._lines: Iterator[str] = iter(())

    def perform(self, step: Step) -> Any:
        match step:
            case Send(method, path, content, headers):
                return self._http.request(method, path, content=content, headers=headers)
            case Open(path, headers):
                self._stack.close()
                response = self._stack.enter_context(self._http.stream("GET", path, headers=headers))
                if not response.is_success:
                    response.read()
                self._lines = _lines(response.iter_bytes())
                return response
            case ReadLine():
                return next(self._lines, None)
            case Wait(seconds):
                time.sleep(seconds)
        return None


class AsyncSteps:
    """Performs actions with an async HTTP client."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def run(self, operation: Operation[Result]) -> Result:
        """Return the operation's result."""
        [result] = [item async for item in self.iterate(_single_item_feed(operation))]
        return result

    async def iterate(self, feed: Feed[Item]) -> AsyncIterator[Item]:
        """Yield the items that the feed emits."""
        async with AsyncExitStack() as stack:
            performer = _Async(self.http, stack)
            reply: Any = None
            error: httpx.TransportError | None = None
            while True:
                try:
                    step = feed.send(reply) if error is None else feed.throw(error)
                except StopIteration:
                    return
                reply = error = None
                if isinstance(step, Emit):
                    yield step.item
                    continue
                try:
                    reply = await performer.perform(step)
                except httpx.TransportError as failure:
                    error = failure


class _Async:
    """Holds the stream of one operation, if it has one open."""

    def __init__(self, http: httpx.AsyncClient, stack: AsyncExitStack) -> None:
        self._http, self._stack = http, stack
        self._lines: AsyncIterator[str] | None = None

    async def perform(self, step: Step) -> Any:
        match step:
            case Send(method, path, content, headers):
                return await self._http.request(method, path, content=content, headers=headers)
            case Open(path, headers):
                await self._stack.aclose()
                response = await self._stack.enter_async_context(self._http.stream("GET", path, headers=headers))
                if not response.is_success:
                    await response.aread()
                self._lines = _async_lines(response.aiter_bytes())
                return response
            case ReadLine():
                return await anext(self._lines, None) if self._lines is not None else None
            case Wait(seconds):
                await asyncio.sleep(seconds)
        return None
