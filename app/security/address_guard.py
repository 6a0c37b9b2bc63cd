"""Restricts URLs from users to public addresses, and to private ones that the operator admits.

Addresses are checked, not spellings: a name is resolved once, all its addresses must be allowed, and the connection
goes to one of the checked addresses. Neither an odd spelling of 127.0.0.1 nor a name server that gives a different
answer the second time (DNS rebinding) leads to the internal network.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

from learnloop.http_settings import tls

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host and a port to all its addresses. Raises OSError or UnicodeError."""
Network = IPv4Network | IPv6Network

# From IANA's registries of special addresses; 168.63.129.16 is Azure's metadata service. Python's `is_global` lets some
# of these through, depending on the Python version.
_DENIED_V4 = [
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
# Outside this network are loopback, link-local, unique local and multicast addresses, and IPv4 addresses in mapped,
# compatible and NAT64 form.
_PUBLIC_V6 = IPv6Network("2000::/3")
_DENIED_V6 = [IPv6Network(net) for net in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")]
DEFAULT_PORTS = {"http": 80, "https": 443}
_FIRST_FREE_PORT = 1024
_RESOLVE_TIMEOUT_S = 5.0
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?")
"""Host and port with ASCII digits only; Python, and therefore httpx, also accepts other digits and signs in a port."""
_AUTHORITY = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
# A separate pool, so that names whose servers do not respond cannot occupy the process's default threads.
_resolving = ThreadPoolExecutor(16, thread_name_prefix="resolver")


class AddressRefused(Exception):
    """A URL leads, or could lead, to a forbidden address; the message says why."""


class AddressGuard:
    """Checks URLs. `admitted` lists host names and networks (CIDR) that are allowed although they are private."""

    def __init__(self, admitted: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        entries = [(entry, _network(entry)) for entry in admitted]
        self._names = {_plain_name(entry) for entry, network in entries if network is None}
        self._networks = [network for _, network in entries if network is not None]
        self._resolve = resolve or _resolve

    async def check(self, url: str) -> None:
        """Check a URL and the addresses of its host. Raises AddressRefused."""
        try:
            async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
                await self.addresses(parse(url))
        except TimeoutError:
            raise AddressRefused("the host cannot be resolved: no name server responds") from None

    async def addresses(self, url: httpx.URL) -> list[str]:
        """Return the addresses of the URL's host to connect to, in order of preference. Raises AddressRefused."""
        host, port = url.raw_host.decode(), url.port or DEFAULT_PORTS[url.scheme]
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise AddressRefused(f"the host {host!r} cannot be resolved") from None
        if not addresses:
            raise AddressRefused(f"the host {host!r} has no address")
        if _plain_name(host) not in self._names and not all(map(self._allowed, addresses)):
            raise AddressRefused(f"the host {host!r} has an address that is not public")
        return addresses

    def _allowed(self, text: str) -> bool:
        address = ip_address(text)
        return _public(address) or any(address in network for network in self._networks)


class GuardedTransport(httpx.AsyncBaseTransport):
    """Checks the URL of each request when it is sent, and connects to a checked address under the URL's host name."""

    def __init__(self, guard: AddressGuard, inner: httpx.AsyncBaseTransport) -> None:
        """`inner` must not reuse connections, because one could serve another name than it was checked for."""
        self._guard = guard
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to a checked address. Raises AddressRefused in addition to httpx's errors."""
        *others, last = await self._guard.addresses(parse(str(request.url)))
        for address in others:
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except httpx.ConnectError:
                continue
        return await self._inner.handle_async_request(_pinned(request, last))

    async def aclose(self) -> None:
        await self._inner.aclose()


def guarded_transport(guard: AddressGuard) -> GuardedTransport:
    """Return a transport without proxies that opens a connection for each request.

    A reused connection could lead to an address that was allowed for another name only.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return GuardedTransport(guard, httpx.AsyncHTTPTransport(trust_env=False, limits=limits, verify=tls()))


def parse(url: str) -> httpx.URL:
    """Parse a URL of an allowed form: http or https, a host, no user, a permitted port. Raises AddressRefused."""
    authority = _AUTHORITY.match(url)
    if authority is None:
        raise AddressRefused("the URL must start with https:// or http://")
    if "@" in authority[1]:
        raise AddressRefused("the URL must not contain a user or password")
    if not _HOST_AND_PORT.fullmatch(authority[1]):
        raise AddressRefused("the URL must have a host, and a port of the digits 0 to 9 if any")
    if any(sign <= " " or sign in "\\\x7f" for sign in url):
        raise AddressRefused("the URL must not contain spaces, control characters or backslashes")
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise AddressRefused(f"not a valid URL: {error}") from None
    if not parsed.raw_host:
        raise AddressRefused("the URL has no host")
    port = parsed.port
    if port is not None and port not in (80, 443) and not _FIRST_FREE_PORT <= port <= 65535:
        raise AddressRefused(f"port {port} is not allowed: use 80, 443, or a port from {_FIRST_FREE_PORT}")
    return parsed


def is_admissible(entry: str) -> bool:
    """Return whether the entry is a host name or a network in CIDR notation."""
    return _network(entry) is not None or re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", entry) is not None


def _pinned(request: httpx.Request, address: str) -> httpx.Request:
    """Return the request with an address as its host; `Host` header, SNI and certificate check still use the name."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode()},
    )


def _public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _DENIED_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _DENIED_V6)


def _network(entry: str) -> Network | None:
    try:
        return ip_network(entry)
    except ValueError:
        return None


def _plain_name(host: str) -> str:
    return host.lower().rstrip(".")


async def _resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    answers = await loop.run_in_executor(_resolving, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))
