"""What environments may reach outside of this process: the operator decides that, not the request.

The service gives an implementation to environments that ask for it (`NeedsAccess`); every method refuses what its
operator does not allow with a ValueError that names the setting.
"""

from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import socket

    import httpx


class Access(Protocol):
    """What the operator allows."""

    max_servers: int
    """How many servers, or connections to one, an environment may use at the same time."""

    def check_url(self, url: str) -> None:
        """Raises ValueError for a URL that is never allowed. What its name leads to is checked as it is used."""

    def check_command(self, command: Sequence[str]) -> None:
        """Raises ValueError if the command may not be run."""

    def check_module(self, name: str) -> None:
        """Raises ValueError if the Python module, or package, may not be loaded as an environment."""

    def secret(self, server: str, name: str) -> str:
        """A secret that the operator set for the server, which is a URL or a command as one line. Raises ValueError."""

    def http_transport(self) -> "httpx.AsyncBaseTransport":
        """The way to servers: connects to checked addresses only."""

    async def connect(self, url: str) -> "socket.socket":
        """A TCP connection to a checked address of the URL's host, for protocols that HTTP does not cover. Raises
        OSError, or ValueError for a URL that is not allowed."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> Process:
        """Start the command, with pipes for its standard streams, in a process group of its own. It is killed when
        this process ends. Raises OSError, or ValueError if it may not be run."""


@runtime_checkable
class NeedsAccess(Protocol):
    """An environment that reaches out."""

    def admit(self, access: Access) -> None:
        """Called once, before the first episode. Raises ValueError, with a message for the user, for what it needs and
        the operator does not allow."""
