"""How many connections there may be, in all and of one client.

Where there is no room for another one, one that waits for a request is closed, of the client that has most of these.
If all are busy, a few more are taken that may only ask for the service's health: a service that works to its limit is
not dead.
"""

import resource
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from app.security.client_address import client_of

RESERVE = 16
"""Connections beyond the limit, for health checks."""
_OTHER_FILES = 200
"""Files and sockets of other kinds: the database, the engine, webhooks, results."""
_MOST_FILES = 65_536


class Connection(Protocol):
    """What is counted."""

    def close_idle(self) -> None:
        """End the connection, which waits for a request."""


@dataclass(slots=True)
class _Client:
    """The connections of one client."""

    count: int = 0
    idle: dict[Connection, None] = field(default_factory=dict)
    """Those that wait for a request, the longest waiting first."""


class Connections:
    """All connections of a server."""

    def __init__(self, most: int, most_per_client: int = 0) -> None:
        """`most_per_client`: 0 is no limit."""
        self._most = most
        self._most_per_client = most_per_client or most
        self._clients: defaultdict[str, _Client] = defaultdict(_Client)
        self._client_of: dict[Connection, str] = {}
        self._reserve: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._client_of)

    def admit(self, connection: Connection, address: str) -> bool:
        """Count a new connection, which waits for a request. False: all it may ask for is the service's health."""
        key = client_of(address)
        client = self._clients[key]
        if client.count >= self._most_per_client and not self._make_room([client]):
            return self._admit_to_reserve(connection)
        if len(self._client_of) >= self._most and not self._make_room(self._clients.values()):
            return self._admit_to_reserve(connection)
        client = self._clients[key]  # a new one if its last connection made room
        client.count += 1
        client.idle[connection] = None
        self._client_of[connection] = key
        return True

    def busy(self, connection: Connection) -> None:
        """It has a request now."""
        if (key := self._client_of.get(connection)) is not None:
            self._clients[key].idle.pop(connection, None)
        self._reserve.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Its request has been answered."""
        if (key := self._client_of.get(connection)) is not None:
            self._clients[key].idle[connection] = None

    def remove(self, connection: Connection) -> None:
        """It is closed."""
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
    """Let this process open as many files as it is allowed to: each connection is one, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(wanted: int) -> int:
    """As many of these connections as the files that this process may open leave room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(RESERVE, min(wanted, soft - _OTHER_FILES - RESERVE))
