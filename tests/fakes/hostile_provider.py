"""A server with hostile answers: endless, byte by byte, decompression bombs, redirects and garbage."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

GIB = 2**30
_PIECE = b" " * 65_536
Answer = Callable[["HostileProvider", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class HostileProvider:
    """`heads` are those of the requests; `accepted_bytes` counts the bytes of bodies that clients accepted."""

    answer: Answer
    heads: list[str] = field(default_factory=list)
    accepted_bytes: int = 0
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.heads.append(head)
            length = re.search(r"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            await self.answer(self, writer)
        writer.close()

    async def pieces(self, writer: asyncio.StreamWriter, head: bytes, piece: bytes, times: int) -> None:
        """Reply with a body of `piece` repeated `times` times, as long as the client accepts it."""
        writer.write(head)
        for _ in range(times):
            writer.write(piece)
            await writer.drain()
            self.accepted_bytes += len(piece)


@asynccontextmanager
async def hostile_provider(answer: Answer) -> AsyncIterator[HostileProvider]:
    """Run a provider while the context is open."""
    provider = HostileProvider(answer)
    server = await asyncio.start_server(provider.handle, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield provider


def _head(status: int = 200, **headers: object) -> bytes:
    named = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} x\r\n{lines}\r\n".encode()


async def gigabyte(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
    await provider.pieces(writer, _head(content_length=GIB), _PIECE, GIB // len(_PIECE))


async def endless(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
    """Send an endless body without a length."""
    await provider.pieces(writer, _head(connection="close"), _PIECE, 2**40)


async def endless_head(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
    await provider.pieces(writer, b"HTTP/1.1 200 x\r\n", b"x-more: " + b"a" * 8_000 + b"\r\n", 2**40)


def gzip_bomb(mebibytes: int) -> Answer:
    """Return an answer of that many MiB, a thousandth of it on the wire, whatever encodings the client accepts."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(b" " * 2**20) for _ in range(mebibytes)) + packer.flush()
    return saying(packed, content_encoding="gzip")


async def bomb(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
    """Send 100 MiB in 100 kB of gzip."""
    await gzip_bomb(100)(provider, writer)


async def endless_events(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
    """Send a stream of one event that never ends."""
    head = _head(content_type="text/event-stream") + b"event: message\ndata: "
    await provider.pieces(writer, head, _PIECE, 2**40)


async def silent_events(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
    """Send a slow stream of comments that never ends."""
    writer.write(_head(content_type="text/event-stream"))
    while not writer.is_closing():
        writer.write(b": still there\n\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def drip(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
    """Send a byte now and then, each in time for a client that limits only single reads."""
    writer.write(_head(content_length=GIB))
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


def saying(body: bytes, status: int = 200, **headers: object) -> Answer:
    """Return an answer with that body."""

    async def answer(provider: HostileProvider, writer: asyncio.StreamWriter) -> None:
        await provider.pieces(writer, _head(status, content_length=len(body), connection="close", **headers), body, 1)

    return answer


def redirecting(status: int, to: HostileProvider) -> Answer:
    """Return an answer that redirects to another server."""
    return saying(b"", status, location=f"{to.url}/v1/chat/completions")
