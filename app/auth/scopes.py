"""What a key allows, and what a request needs. Pure functions."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Scope(StrEnum):
    """Scopes do not include each other: a key that reads and writes has both."""

    READ = "read"
    WRITE = "write"
    """Everything that changes something or uses a model."""
    OPERATOR = "operator"
    """Create and revoke keys."""


PUBLIC = frozenset({"/", "/health/live", "/health/ready", "/docs", "/docs/oauth2-redirect", "/openapi.json"})
"""Paths that need no key. All others do, including any added later."""
DOCUMENTATION_FILES = "/static-offline-docs/"
"""What the documentation page loads."""
DASHBOARD_FILES = "/assets/"
"""What the dashboard loads."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OPERATOR = "/keys"
SESSION = "/session"
"""Signing in, out, and asking who one is: any key may."""


def route_path(scope: Mapping[str, Any]) -> str:
    """The path as routes know it: without the prefix that a proxy or another application put before it."""
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def is_public(path: str) -> bool:
    """Whether the path needs no key."""
    return path in PUBLIC or path.startswith((DOCUMENTATION_FILES, DASHBOARD_FILES))


def needed(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None: any key will do."""
    if path == SESSION:
        return None
    if path == _OPERATOR or path.startswith(f"{_OPERATOR}/"):
        return Scope.OPERATOR
    return Scope.READ if method in READING else Scope.WRITE
