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


SESSIONS = "/sessions/"
_MODELS = "/v1/"
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
"""What is in the protocol of Anthropic."""
_OF_AGENTS = ("", "/outcome", "/v1/chat/completions", "/v1/responses", *ANTHROPIC)
"""What an agent reaches of its own session; the last ones also without its id before them."""
_MODEL_LIST = "/v1/models"
"""An agent reads of its session's model there, whatever name it asks for."""
MODEL_CALLS = frozenset(path for path in _OF_AGENTS if path.startswith("/v1/"))


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


def is_for_agent(path: str, session_id: str) -> bool:
    """Whether the agent of that session may make requests to the path."""
    own = path.removeprefix(f"{SESSIONS}{session_id}")
    if own == path:
        return path in MODEL_CALLS or _is_model_list(path)
    return own in _OF_AGENTS or _is_model_list(own)


def _is_model_list(path: str) -> bool:
    return path == _MODEL_LIST or path.startswith(f"{_MODEL_LIST}/")


def model_path(path: str) -> str | None:
    """The path below `/v1`, with that, of a path that has it at its beginning or below a session; None: it has not."""
    if path.startswith(SESSIONS):
        path = path.removeprefix(SESSIONS).partition("/")[2]
        path = f"/{path}"
    return path if path.startswith(_MODELS) else None
