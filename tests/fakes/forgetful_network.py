"""A network in front of a real server that forgets connections, as a NAT or a firewall does: both ends stay open, and
nothing arrives on them any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ForgetfulNetwork:
    """`url` leads to the server. Connections that were open at the last `forget` carry nothing."""

    url: str = ""
    forgets_new: bool = False
    connections: int = 0
    carried: int = 0
    """Bytes that the server sent."""
    _forgotten: list[asyncio.Event] = field(default_factory=list)

    def forget(self) -> None:
        """Forget all connections that are open now."""
        for event in self._forgotten:
            event.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """Carry one connection to the server."""
        self.connections += 1
        forgotten = asyncio.Event()
        if self.forgets_new:
            forgotten.set()
        self._forgotten.append(forgotten)
        there, back = await asyncio.open_connection("127.0.0.1", port)
        ways = [
            asyncio.create_task(self._one_way(reader, back, forgotten, False)),
            asyncio.create_task(self._one_way(there, writer, forgotten, True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            if not forgotten.is_set():
                back.close()

    async def _one_way(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, forgotten: asyncio.Event, counts: bool
    ) -> None:
        with suppress(OSError):
            while piece := await source.read(1 << 16):
                if not forgotten.is_set():
                    self.carried += counts and len(piece)
                    sink.write(piece)
                    await sink.drain()


@asynccontextmanager
async def forgetful_network(port: int) -> AsyncIterator[ForgetfulNetwork]:
    """A network to a port of this machine."""
    network = ForgetfulNetwork()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError, OSError):  # the streams would print it
            await network.carry(reader, writer, port)

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    network.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield network
    finally:
        server.close()
