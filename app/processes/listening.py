"""Binds the address that the service listens on before anything else is started."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class CannotListen(Exception):
    """The address or port is not available. The message says why and what to do."""


@contextmanager
def taken_port(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Yield a bound socket for each address of `host`. They do not listen yet, so connections are refused.

    The sockets are closed at the end. Raises CannotListen.
    """
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
            sockets = [stack.enter_context(_bound(*each)) for each in addresses]
        except OSError as error:
            raise CannotListen(f"cannot listen on {host}:{port}: {_why(error)}") from error
        yield sockets


def _bound(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on other systems it would take the port from its owner
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; stop it, or set LEARNLOOP_PORT"
    if error.errno == errno.EACCES:
        return "this port needs more rights; choose one from 1024 on with LEARNLOOP_PORT"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{error.strerror}; LEARNLOOP_HOST is not an address of this machine"
    return error.strerror or str(error)
