"""Without API keys only programs on this machine may use the service.

A web page can reach loopback through the browser of its visitor. The `Origin` header shows that such a request comes
from another site; the `Host` header exposes a page whose name resolves to 127.0.0.1 (DNS rebinding).
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import Scope

from app.errors import Forbidden

_NAMES = {"127.0.0.1", "localhost", "::1"}


def refuse_foreign_pages(scope: Scope, origins: Collection[str]) -> None:
    """Raises Forbidden for requests from web pages of other sites, except those of `origins` (CORS)."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
    host, origin = headers.get(b"host", ""), headers.get(b"origin")
    if host and urlsplit(f"//{host}").hostname not in _NAMES:
        raise Forbidden(
            f"Host {host!r} is not allowed without API keys; use a loopback name, or set LEARNLOOP_REQUIRE_KEYS."
        )
    if origin is not None and urlsplit(origin).netloc != host and not {origin, "*"} & set(origins):
        raise Forbidden(f"Origin {origin!r} is not allowed; add it to LEARNLOOP_CORS_ORIGINS.")
