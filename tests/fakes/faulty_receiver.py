"""A webhook receiver on a real port that fails in all the ways that receivers fail, as scripted by a test."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Fault = Literal["drop", "hang", "reset"]
"""Hang up without reading the message, never answer, or send half a line and hang up."""


@dataclass(frozen=True)
class Arrival:
    """A message that was read completely."""

    headers: dict[str, str]
    raw: bytes
    status: int | None
    """Status of the answer, or None if it was not sent."""
    at: float = field(default_factory=time.monotonic)
    """Time at which it was read, on the monotonic clock."""

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class FaultyReceiver:
    """`answer` returns what happens to the n-th request, from 0: a fault, or a raw status line with headers."""

    answer: Callable[[int], Fault | str] = lambda number: "200 OK"
    arrivals: list[Arrival] = field(default_factory=list)
    requests: int = 0
    hanging: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends all hanging. Requests that hung are then answered with 200."""
    url: str = ""

    def accepted(self) -> list[Arrival]:
        """Return the messages that were answered with success, in order."""
        return [arrival for arrival in self.arrivals if arrival.status is not None and arrival.status < 300]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._handle(reader, writer)
        writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        answer = self.answer(self.requests)
        self.requests += 1
        if answer == "drop":
            return
        lines = head.split("\r\n")[1:]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        raw = await reader.readexactly(int(headers["content-length"]))
        if answer == "hang":
            self.hanging += 1
            await self.released.wait()
            answer = "200 OK"
        if answer == "reset":
            self.arrivals.append(Arrival(headers, raw, None))
            writer.write(b"HTTP/1.1 2")
        else:
            self.arrivals.append(Arrival(headers, raw, int(answer.split()[0])))
            writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()


@asynccontextmanager
async def faulty_receiver(
    answer: Callable[[int], Fault | str] = lambda number: "200 OK",
) -> AsyncIterator[FaultyReceiver]:
    """Run a receiver while the context is open."""
    it = FaultyReceiver(answer)
    server = await asyncio.start_server(it.handle, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    async with server:
        yield it
        it.released.set()
