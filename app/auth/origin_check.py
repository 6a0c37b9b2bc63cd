"""Checks which web pages can use the service on behalf of their visitors.

Without API keys, only programs on this machine can use the service, but a web page can reach loopback through its
visitor's browser. The `Origin` header shows that such a request comes from another site. The `Host` header exposes a
page whose name resolves to 127.0.0.1 (DNS rebinding).

A browser sends the cookie of a sign-in automatically, so a request with one must come from a page of the service.
Browsers show this in `Sec-Fetch-Site` or `Origin`, which pages cannot set. `SameSite=Strict` alone would admit pages of
the same site, such as another port of the host or another host of the domain.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import Scope

from learnloop_service.app.auth.scopes import READING
from learnloop_service.app.errors import Forbidden

_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip")
"""Beginnings of the names of headers that proxies add."""
_NAMES = {"127.0.0.1", "localhost", "::1"}


def refuse_foreign_pages(scope: Scope, origins: Collection[str]) -> None:
    """Raise Forbidden for requests that a proxy forwarded, which can come from anyone, and for those from web pages of
    other sites, except those of `origins` (CORS)."""
    headers = _headers(scope)
    if (proxied := next((name for name in headers if name.startswith(_FORWARDED)), None)) is not None:
        raise Forbidden(
            f"A proxy forwarded this request (header {proxied}), and the service requires no API keys, so everyone who "
            "reaches the proxy could use it. Create a key (learnloop keys create --bootstrap --name NAME, while the "
            "service is stopped), or set LEARNLOOP_REQUIRE_KEYS=always."
        )
    host, origin = headers.get("host", ""), headers.get("origin")
    if host and urlsplit(f"//{host}").hostname not in _NAMES:
        raise Forbidden(
            f"Host {host!r} is not allowed without API keys; use a loopback name, or set LEARNLOOP_REQUIRE_KEYS."
        )
    if origin is not None and urlsplit(origin).netloc != host and not {origin, "*"} & set(origins):
        raise Forbidden(f"Origin {origin!r} is not allowed; add it to LEARNLOOP_CORS_ORIGINS.")


def refuse_other_origins(scope: Scope) -> None:
    """Raise Forbidden for a request with the cookie of a sign-in, unless it comes from a page of this service.

    Read requests are also allowed if a person opened a link or typed an address, or if they come from a program, which
    sends neither header. Requests that change something must state their origin.
    """
    headers = _headers(scope)
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    reads = scope["method"] in READING
    if site is not None:
        is_own_page = site == "same-origin" or (site == "none" and reads)
    elif origin is not None:
        is_own_page = urlsplit(origin).netloc == headers.get("host", "")
    else:
        is_own_page = reads
    if not is_own_page:
        raise Forbidden(
            "With the cookie of a sign-in, only pages of this service can make requests; send an API key instead. "
            "(A proxy must pass on the headers Host, Origin and Sec-Fetch-Site.)"
        )


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
