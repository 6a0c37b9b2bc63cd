"""How servers are reached: the service's URL and API key, the proxies and certificates of the environment."""

import os
import re
import ssl
from collections.abc import MutableMapping
from contextlib import suppress
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

URL_VARIABLE = "LEARNLOOP_URL"
KEY_VARIABLE = "LEARNLOOP_API_KEY"
"""Variable with the API key. The key of a command cannot be an argument: other users of the machine can read those."""
DEFAULT_URL = "http://127.0.0.1:8000"
_HERE = ("localhost", "127.0.0.1", "::1")
_NO_PROXY = ("no_proxy", "NO_PROXY")


def http_settings(base_url: str | None, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of both kinds of httpx clients. The URL and the key default to the environment's.

    Raises ValueError for an invalid base URL.
    """
    url = (os.environ.get(URL_VARIABLE) or DEFAULT_URL) if base_url is None else base_url
    key = api_key or os.environ.get(KEY_VARIABLE)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the URL of a service, such as {DEFAULT_URL}")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return {"base_url": url.rstrip("/"), "headers": headers, "timeout": timeout_s, **route(url)}


def route(url: str) -> dict[str, Any]:
    """Return the arguments of an httpx client that reaches this URL: through the environment's proxy if one is meant
    for it, and with the environment's certificates (SSL_CERT_FILE)."""
    return {"trust_env": False, "proxy": proxy_of(url), "verify": tls() if url.startswith("https") else False}


@cache
def tls() -> ssl.SSLContext:
    """Return the TLS settings, with the environment's certificates. Cached, because reading them takes 20 ms."""
    import httpx  # imported late: commands that send nothing start sooner

    return httpx.create_ssl_context()


def proxy_of(url: str) -> str | None:
    """Return the environment's proxy for this URL; None for this machine and what NO_PROXY names, also as a network."""
    from urllib.request import getproxies

    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_here(host) or _is_exempt(host, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_exempt(host: str, no_proxy: str) -> bool:
    for entry in filter(None, re.split(r"[\s,]+", no_proxy)):
        if (network := _network(entry)) is not None:
            with suppress(ValueError):
                if ip_address(host) in network:
                    return True
            continue
        name = entry.lower().rsplit("://", 1)[-1].rsplit(":", 1)[0].removeprefix("*").removeprefix(".")
        if not name or host == name or host.endswith(f".{name}"):
            return True
    return False


def _network(entry: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


def spare_loopback(environ: MutableMapping[str, str]) -> None:
    """Exempt this machine from the proxies of an environment, for libraries that read it themselves.

    What httpx cannot read in NO_PROXY, such as a network of IPv6, is dropped: it would fail with "Invalid port".
    """
    no_proxy = next((environ[name] for name in _NO_PROXY if environ.get(name)), "")
    if not no_proxy and not any(name.lower().endswith("_proxy") for name in environ):
        return
    entries = filter(None, map(_as_httpx_reads_it, re.split(r"[\s,]+", no_proxy)))
    exempt = ",".join(dict.fromkeys([*entries, *_HERE]))
    for name in _NO_PROXY:
        environ[name] = exempt


def _as_httpx_reads_it(entry: str) -> str | None:
    bare = entry.strip("[]")
    if "://" in entry or ":" not in entry:
        return entry
    if bare.count(":") == 1:
        return entry if entry.rpartition(":")[2].isdigit() else None
    try:
        return str(ip_address(bare))
    except ValueError:
        return None
