"""Intercepts all outside connections of this process, and records where they would go and what would be sent.

Every host name resolves to a public address. Requests by httpx are answered with 401, whatever their scheme;
connections of other libraries are refused. Connections to the given ports of this machine are real.
"""

import re
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from unittest.mock import patch

import httpcore
from httpcore._backends.auto import AutoBackend

PUBLIC = "93.184.216.34"
_UNAUTHORIZED = b"HTTP/1.1 401 x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@dataclass
class Connection:
    """An attempted connection. `plaintext` is the data before TLS."""

    address: str
    port: int
    plaintext: bytearray = field(default_factory=bytearray)

    @property
    def host(self) -> str:
        """Name of the request's host, or the address if it has none."""
        match = re.search(rb"(?i)\r\nhost: ([^\r]+)", self.plaintext)
        return match[1].decode() if match else self.address

    @property
    def is_private(self) -> bool:
        """Whether it goes to an address that is not public, or to a name for this machine."""
        try:
            return not ip_address(self.address).is_global
        except ValueError:
            return self.address == "localhost"


class _Stream(httpcore.AsyncMockStream):
    """Records what is written, and has one reply."""

    def __init__(self, connection: Connection) -> None:
        super().__init__([_UNAUTHORIZED])
        self._connection = connection

    async def write(self, buffer: bytes, *_: object, **__: object) -> None:
        self._connection.plaintext += buffer

    async def start_tls(self, *_: object, **__: object) -> "_Stream":
        return self


@contextmanager
def recorded_connections(real_ports: Collection[int]) -> Iterator[Sequence[Connection]]:
    """Record the connections that are attempted in the block."""
    connections: list[Connection] = []
    connect_tcp, connect, resolve = AutoBackend.connect_tcp, socket.socket.connect, socket.getaddrinfo

    async def record_httpx(self: Any, host: str, port: int, *options: Any, **more: Any) -> Any:
        if port in real_ports:
            return await connect_tcp(self, host, port, *options, **more)
        connections.append(Connection(host, port))
        return _Stream(connections[-1])

    def record(self: socket.socket, address: Any) -> None:
        if self.family == socket.AF_UNIX or address[1] in real_ports:
            connect(self, address)
            return
        connections.append(Connection(str(address[0]), address[1]))
        raise ConnectionRefusedError("nothing outside is reached here")

    def resolved(host: Any, port: Any, *options: Any, **more: Any) -> Any:
        try:
            return resolve(host, port, *options, **more | {"flags": socket.AI_NUMERICHOST})
        except socket.gaierror:
            resolvable = host if host == "localhost" else PUBLIC
            return resolve(resolvable, port, *options, **more)

    with (
        patch.object(AutoBackend, "connect_tcp", record_httpx),
        patch.object(socket.socket, "connect", record),
        patch.object(socket, "getaddrinfo", resolved),
    ):
        yield connections
