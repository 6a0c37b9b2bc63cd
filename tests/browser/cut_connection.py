"""A way to a service that can be cut: TCP connections in between, all ended at once and then refused for a while."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class CutConnection:
    """`url` leads to the service at `port`, until it is cut."""

    port: int
    url: str = ""
    is_cut: bool = False
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def restore(self) -> None:
        self.is_cut = False

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self._open |= {writer, back}
        with contextlib.suppress(OSError):
            await asyncio.gather(_pass(reader, back), _pass(there, writer))
        self._open -= {writer, back}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def cut_connection(port: int) -> AsyncIterator[CutConnection]:
    made = CutConnection(port)
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.cut()
