"""Limits on connections, in total and per client.

When a limit is reached, an idle connection is closed to make room, namely one of the client with the most idle
connections. If all are busy, a few more are accepted that can only request the service's health, because a fully loaded
service is not dead.
"""

import resource
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from learnloop_service.app.security.client_address import client_of

RESERVE = 16
"""Number of connections beyond the limit, for health checks."""
_OTHER_FILES = 200
"""File descriptors reserved for other uses: the database, the engine, webhooks, results."""
_MOST_FILES = 65_536


class Connection(Protocol):
    """A connection as it is counted here."""

    def close_idle(self) -> None:
        """Close the connection, which is waiting for a request."""


@dataclass(slots=True)
class _Client:
    """A client's connections."""

    count: int = 0
    idle: dict[Connection, None] = field(default_factory=dict)
    """Connections that are waiting for a request, the longest waiting first."""


class Connections:
    """All connections of a server."""

    def __init__(self, most: int, most_per_client: int = 0) -> None:
        """A `most_per_client` of 0 means no limit for one client."""
        self._most = most
        self._most_per_client = most_per_client or most
        self._clients: defaultdict[str, _Client] = defaultdict(_Client)
        self._client_of: dict[Connection, str] = {}
        self._reserve: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._client_of)

    def admit(self, connection: Connection, address: str) -> bool:
        """Count a new connection, which is waiting for a request. False: it can only request the service's health."""
        key = client_of(address)
        client = self._clients[key]
        if client.count >= self._most_per_client and not self._make_room([client]):
            return self._admit_to_reserve(connection)
        if len(self._client_of) >= self._most and not self._make_room(self._clients.values()):
            return self._admit_to_reserve(connection)
        client = self._clients[key]  # looked up again, because the client is dropped if its last connection made room
        client.count += 1
        client.idle[connection] = None
        self._client_of[connection] = key
        return True

    def busy(self, connection: Connection) -> None:
        """Note that the connection has received a request."""
        if (key := self._client_of.get(connection)) is not None:
            self._clients[key].idle.pop(connection, None)
        self._reserve.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Note that the connection's request has been answered."""
        if (key := self._client_of.get(connection)) is not None:
            self._clients[key].idle[connection] = None

    def remove(self, connection: Connection) -> None:
        """Note that the connection is closed."""
        self._reserve.pop(connection, None)
        if (key := self._client_of.pop(connection, None)) is not None:
            client = self._clients[key]
            client.count -= 1
            client.idle.pop(connection, None)
            if not client.count:
                del self._clients[key]

    def _make_room(self, clients: Iterable[_Client]) -> bool:
        most = max(clients, key=lambda client: len(client.idle))
        if not most.idle:
            return False
        self._close(next(iter(most.idle)))
        return True

    def _admit_to_reserve(self, connection: Connection) -> bool:
        if len(self._reserve) >= RESERVE:
            self._close(next(iter(self._reserve)))
        self._reserve[connection] = None
        return False

    def _close(self, connection: Connection) -> None:
        self.remove(connection)
        connection.close_idle()


def raise_file_limit() -> None:
    """Raise this process's limit of open files as far as allowed. Each connection needs one, and 1,024 is usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def most_connections(requested: int) -> int:
    """Return `requested`, or the number of connections that this process's limit of open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return requested
    return max(RESERVE, min(requested, soft - _OTHER_FILES - RESERVE))
