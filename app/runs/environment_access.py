"""What environments can reach outside this process, according to the operator's settings."""

import asyncio
import shlex
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL

import httpx

from learnloop_service.app.processes.child import spawn
from learnloop_service.app.security.address_guard import (
    DEFAULT_PORTS,
    AddressGuard,
    AddressRefused,
    guarded_transport,
    parse,
)
from learnloop_service.app.settings import Settings

_ANY_ARGUMENTS = "*"


class EnvironmentAccess:
    """`learnloop_service.environment.access.Access` according to the settings."""

    def __init__(self, settings: Settings) -> None:
        self.max_servers = settings.environment_servers
        self._commands = [shlex.split(command) for command in settings.environment_commands]
        self._modules = settings.environment_modules
        self._guard = AddressGuard(settings.environment_hosts)
        self._secrets = settings.environment_secrets

    def check_url(self, url: str) -> None:
        """Raise ValueError for a URL that is never allowed."""
        try:
            parse(url)
        except AddressRefused as refused:
            raise ValueError(f"{url}: {refused}") from refused

    def check_command(self, command: Sequence[str]) -> None:
        """Raise ValueError unless the settings list the command, word for word, or its beginning followed by `*`."""
        for allowed in self._commands:
            if list(command) == allowed:
                return
            if allowed[-1:] == [_ANY_ARGUMENTS] and list(command[: len(allowed) - 1]) == allowed[:-1]:
                return
        raise ValueError(
            f"the command {shlex.join(command)!r} may not be run here: the operator allows commands in "
            "LEARNLOOP_ENVIRONMENT_COMMANDS"
        )

    def check_module(self, name: str) -> None:
        """Raise ValueError unless the settings list the module."""
        if name not in self._modules:
            raise ValueError(
                f"{name!r} may not be loaded here: the operator allows Python modules in LEARNLOOP_ENVIRONMENT_MODULES"
            )

    def secret(self, server: str, name: str) -> str:
        """Return the secret from the settings. Raises ValueError if there is none."""
        secret = self._secrets.get(server, {}).get(name)
        if secret is None:
            raise ValueError(
                f"there is no secret {name!r} for {server}: the operator sets them in LEARNLOOP_ENVIRONMENT_SECRETS"
            )
        return secret.get_secret_value()

    def http_transport(self) -> httpx.AsyncBaseTransport:
        return guarded_transport(self._guard)

    async def connect(self, url: str) -> socket.socket:
        """Open a TCP connection to a checked address of the URL's host. Raises OSError or ValueError."""
        try:
            parsed = parse(url)
            addresses = await self._guard.addresses(parsed)
        except AddressRefused as refused:
            raise ValueError(f"{url}: {refused}") from refused
        port = parsed.port or DEFAULT_PORTS[parsed.scheme]
        for number, address in enumerate(addresses, 1):
            try:
                return await _connected(address, port)
            except OSError:
                if number == len(addresses):
                    raise
        raise AssertionError("the guard gives at least one address")

    async def start(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> Process:
        """Start an allowed command. Raises OSError or ValueError."""
        self.check_command(command)
        return await spawn(
            command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd=directory, death_signal=SIGKILL
        )


async def _connected(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except BaseException:
        connection.close()
        raise
    return connection
