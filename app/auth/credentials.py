"""The credentials of a request: an API key in a header, or a browser's sign-in in a cookie.

A key is a bearer token; for Anthropic's protocol it can also be in `x-api-key`, where its clients send it.

Neither is ever taken from the URL: URLs end up in logs and histories.
"""

from dataclasses import dataclass, field

from starlette.types import Scope

from learnloop_service.app.auth.agent_session_keys import is_session_key
from learnloop_service.app.auth.scopes import ANTHROPIC, model_path, route_path
from learnloop_service.app.errors import Unauthorized

_PLAIN_COOKIE = "learnloop_session"
_SECURE_COOKIE = "__Host-learnloop_session"
"""Browsers accept a cookie with this prefix only over HTTPS, and only from this host, not from others of its domain."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret and its kind."""

    secret: str = field(repr=False)
    is_sign_in: bool = False
    """Whether it is the token of a browser's sign-in. Otherwise it is an API key."""


def credential_of(scope: Scope) -> Credential:
    """Return the credential of a request. A key takes precedence over a cookie. Raises Unauthorized."""
    cookies = _sign_in_cookies(scope)
    if not cookies or _authorizations(scope) or _plain_keys(scope):
        return Credential(key_of(scope))
    return Credential(cookies.get(_SECURE_COOKIE) or cookies[_PLAIN_COOKIE], is_sign_in=True)


def key_of(scope: Scope) -> str:
    """Return the API key of a request. Raises Unauthorized."""
    authorizations, plain = _authorizations(scope), _plain_keys(scope)
    if not authorizations and len(plain) == 1:
        return plain[0].decode("latin-1").strip()
    if not authorizations:
        raise Unauthorized("An API key is required: Authorization: Bearer ll_...")
    kind, _, key = authorizations[0].decode("latin-1").partition(" ")
    if len(authorizations) > 1 or kind.lower() != "bearer":
        raise Unauthorized("Send the API key in a single header: Authorization: Bearer ll_...")
    return key.strip()


def session_key_of(scope: Scope) -> str | None:
    """Return the key of an agent's session, if the request has one. For services that require no keys."""
    for value in (*_authorizations(scope), *_plain_keys(scope)):
        key = value.decode("latin-1").rpartition(" ")[2]
        if is_session_key(key):
            return key
    return None


def is_https(scope: Scope) -> bool:
    """Whether the browser speaks HTTPS. The service itself does not, but the page's origin shows it."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
    return scope.get("scheme") == "https" or origin.startswith(b"https://")


def sign_in_cookie(token: str, seconds: int, *, secure: bool) -> str:
    """Return the Set-Cookie value for a sign-in: no script can read it, and no other site's request carries it."""
    name, only_https = (_SECURE_COOKIE, "; Secure") if secure else (_PLAIN_COOKIE, "")
    return f"{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{only_https}"


def removed_cookies(scope: Scope) -> list[str]:
    """Return the Set-Cookie values that make the browser forget the cookies of this request."""
    cookies = () if _authorizations(scope) or _plain_keys(scope) else _sign_in_cookies(scope)
    return [sign_in_cookie("", 0, secure=name == _SECURE_COOKIE) for name in cookies]


def _authorizations(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"authorization"]


def _plain_keys(scope: Scope) -> list[bytes]:
    keys = [value for name, value in scope["headers"] if name == b"x-api-key"]
    return keys if keys and model_path(route_path(scope)) in ANTHROPIC else []


def _sign_in_cookies(scope: Scope) -> dict[str, str]:
    """Return the tokens by the names of their cookies."""
    headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
    pairs = [pair.strip().partition("=") for header in headers for pair in header.split(";")]
    return {name: value for name, _, value in pairs if name in (_PLAIN_COOKIE, _SECURE_COOKIE)}
