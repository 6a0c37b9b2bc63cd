"""Without keys everybody who reaches the service may do everything: so that must be a program of this machine.

A web page reaches loopback too, from the browser of whoever visits it. Its requests tell by `Origin` that another
site sends them; a page whose name was made to mean 127.0.0.1 (DNS rebinding) tells by `Host`.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import Scope

from app.errors import Forbidden

_NAMES = {"127.0.0.1", "localhost", "::1"}


def refuse_foreign_pages(scope: Scope, origins: Collection[str]) -> None:
    """Raises Forbidden for what a web page of another site sends; pages of `origins` (CORS) are welcome."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
    host, origin = headers.get(b"host", ""), headers.get(b"origin")
    if host and urlsplit(f"//{host}").hostname not in _NAMES:
        raise Forbidden(f"without API keys only loopback names are answered, not {host!r}: set LEARNLOOP_REQUIRE_KEYS")
    if origin is not None and urlsplit(origin).netloc != host and not {origin, "*"} & set(origins):
        raise Forbidden(f"pages of {origin!r} may not call this service: name it in LEARNLOOP_CORS_ORIGINS")
