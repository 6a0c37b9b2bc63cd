"""A webhook receiver on a real port that records requests and sends scripted replies."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Receiver:
    """`replies` are raw status lines with headers, used in order. After the last one, every request gets 200."""

    replies: list[str] = field(default_factory=list)
    received: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""

    def bodies(self) -> Iterator[Any]:
        return (body for _, _, body in self.received)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append((request, headers, json.loads(body)))
        reply = self.replies.pop(0) if self.replies else "200 OK"
        writer.write(f"HTTP/1.1 {reply}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiver(*replies: str) -> AsyncIterator[Receiver]:
    """Run a receiver while the context is open."""
    it = Receiver(list(replies))
    server = await asyncio.start_server(it.handle, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    async with server:
        yield it
