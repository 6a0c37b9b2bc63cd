"""What an operation does, step by step, said once for the sync and the async client.

An operation is a generator. It yields steps (send this, wait so long, read the next line of the stream) and is sent
what each gave, or has a transport error raised in it; what it returns is its result. SyncSteps and AsyncSteps perform
the steps of any operation, without and with `await`.
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
    """Send a request; gives the response, read whole."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request and leave its response open as the stream, in place of an earlier one; gives the response.

    What is no success is read whole.
    """

    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReadLine:
    """Gives the next line of the stream, None at its end."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit(Generic[Item]):
    """Hand this to whoever iterates."""

    item: Item


Step = Send | Open | ReadLine | Wait
Operation = Generator[Step, Any, Result]
Feed = Generator[Step | Emit[Item], Any, None]


class _Lines:
    """Lines out of pieces of a stream. They end with a line feed only: httpx ends them at other characters, too, which
    a message may have."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, piece: bytes) -> list[str]:
        """The lines that end in this piece."""
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


def _emitted(operation: Operation[Result]) -> Feed[Result]:
    """A feed of nothing but the operation's result."""
    yield Emit((yield from operation))


class SyncSteps:
    """Performs steps by a blocking HTTP client."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def run(self, operation: Operation[Result]) -> Result:
        """The operation's result."""
        [result] = self.iterate(_emitted(operation))
        return result

    def iterate(self, feed: Feed[Item]) -> Iterator[Item]:
        """What the feed emits."""
        with ExitStack() as stack:
            performer = _Sync(self.http, stack)
            given: Any = None
            error: httpx.TransportError | None = None
            while True:
                try:
                    step = feed.send(given) if error is None else feed.throw(error)
                except StopIteration:
                    return
                given = error = None
                if isinstance(step, Emit):
                    yield step.item
                    continue
                try:
                    given = performer.perform(step)
                except httpx.TransportError as failure:
                    error = failure


class _Sync:
    """One operation's stream, if it has one open."""

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
    """Performs steps by a client that is awaited."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def run(self, operation: Operation[Result]) -> Result:
        """The operation's result."""
        [result] = [each async for each in self.iterate(_emitted(operation))]
        return result

    async def iterate(self, feed: Feed[Item]) -> AsyncIterator[Item]:
        """What the feed emits."""
        async with AsyncExitStack() as stack:
            performer = _Async(self.http, stack)
            given: Any = None
            error: httpx.TransportError | None = None
            while True:
                try:
                    step = feed.send(given) if error is None else feed.throw(error)
                except StopIteration:
                    return
                given = error = None
                if isinstance(step, Emit):
                    yield step.item
                    continue
                try:
                    given = await performer.perform(step)
                except httpx.TransportError as failure:
                    error = failure


class _Async:
    """One operation's stream, if it has one open."""

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
