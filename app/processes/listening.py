"""Binds the address that the service listens on before anything else is started."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from learnloop_service.app.settings import is_any


class CannotListen(Exception):
    """The address or port is not available. The message says why and what to do."""


@contextmanager
def taken_port(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Yield a bound socket for each address of `host`. They do not listen yet, so connections are refused. The host
    `::` also means all IPv4 addresses, which have a socket of their own: a shared one would show IPv4 clients under
    IPv6 addresses, which the limits of clients and networks do not recognize.

    The sockets are closed at the end. Raises CannotListen.
    """
    with ExitStack() as stack:
        try:
            resolved = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in resolved))
            sockets = [stack.enter_context(_bound(family, address)) for family, address in addresses]
            if is_any(host) and [family for family, _ in addresses] == [socket.AF_INET6]:
                port = sockets[0].getsockname()[1]
                sockets.append(stack.enter_context(_bound(socket.AF_INET, ("0.0.0.0", port))))
        except OSError as error:
            raise CannotListen(f"cannot listen on {host}:{port}: {_why(error)}") from error
        yield sockets


def _bound(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on other systems it would take the port from its owner
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; stop it, or set LEARNLOOP_PORT"
    if error.errno == errno.EACCES:
        return "this port needs more rights; choose one from 1024 on with LEARNLOOP_PORT"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{error.strerror}; LEARNLOOP_HOST is not an address of this machine"
    return error.strerror or str(error)
