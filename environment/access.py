"""What environments can reach outside this process. The operator decides that, not the request.

The service passes an implementation to environments that ask for it (`NeedsAccess`). Every method refuses what the
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
    """Grants what the operator allows."""

    max_servers: int
    """Most servers, or connections to one server, that an environment can use at the same time."""

    def check_url(self, url: str) -> None:
        """Raise ValueError for a URL that is never allowed. The addresses behind its host name are checked on use."""

    def check_command(self, command: Sequence[str]) -> None:
        """Raise ValueError if the command is not allowed."""

    def check_module(self, name: str) -> None:
        """Raise ValueError if the Python module or package must not be loaded as an environment."""

    def secret(self, server: str, name: str) -> str:
        """Return a secret that the operator set for the server, given as a URL or a one-line command. Raises
        ValueError."""

    def http_transport(self) -> "httpx.AsyncBaseTransport":
        """Return a transport that connects to checked addresses only."""

    async def connect(self, url: str) -> "socket.socket":
        """Open a TCP connection to a checked address of the URL's host, for protocols other than HTTP. Raises OSError,
        or ValueError for a URL that is not allowed."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> Process:
        """Start the command in a new process group, with pipes for its standard streams. It is killed when this process
        ends. Raises OSError, or ValueError if the command is not allowed."""


@runtime_checkable
class NeedsAccess(Protocol):
    """An environment that uses servers or processes outside this one."""

    def admit(self, access: Access) -> None:
        """Receive the access, once, before the first episode. Raises ValueError, with a message for the user, if the
        environment needs something that the operator does not allow."""
