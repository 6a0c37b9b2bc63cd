"""A proxy that loses requests and replies, in front of a real engine, on a real port."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

Moment = Literal["request", "reply"]
Loses = Callable[[Moment, str], Awaitable[bool]]
"""Returns whether to close the connection at this moment of this request, such as `POST /v1/chat/completions`."""


async def nothing(moment: Moment, request: str) -> bool:
    """Lose nothing."""
    return False


@dataclass
class LossyProxy:
    """`target` is the engine's base URL, which can change; `loses` decides what is lost."""

    target: str
    loses: Loses = nothing
    requests: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        work = asyncio.create_task(self._forward(reader, writer))
        try:
            await work
        except (OSError, asyncio.IncompleteReadError):
            pass  # the engine is down, or the client has left
        finally:
            work.cancel()
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        request = b" ".join(head.split(b" ", 2)[:2]).decode().partition("?")[0]
        self.requests.append(request)
        if await self.loses("request", request):
            return
        head = re.sub(rb"(?im)^connection:.*\r\n", b"", head)[:-2] + b"Connection: close\r\n\r\n"
        reply = await _answer(self.target, head + body, reader)
        if reply is not None and not await self.loses("reply", request):
            writer.write(reply)
            await writer.drain()


async def _answer(target: str, request: bytes, client: asyncio.StreamReader) -> bytes | None:
    """Return the engine's reply, or None if the client leaves first."""
    address = re.search(r"//([^:/]+):(\d+)", target)
    assert address
    reader, writer = await asyncio.open_connection(address[1], int(address[2]))
    writer.write(request)
    replying, leaving = asyncio.ensure_future(reader.read()), asyncio.ensure_future(client.read(1))
    try:
        await asyncio.wait((replying, leaving), return_when=asyncio.FIRST_COMPLETED)
        return replying.result() if replying.done() else None
    finally:
        replying.cancel()
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await leaving
        writer.close()


@asynccontextmanager
async def lossy_proxy(target: str) -> AsyncIterator[LossyProxy]:
    """Run a proxy while the context is open."""
    proxy = LossyProxy(target)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield proxy
