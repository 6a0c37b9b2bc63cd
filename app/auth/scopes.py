"""The scopes that keys have and requests need. Pure functions."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Scope(StrEnum):
    """A permission of a key. Scopes do not include each other: a key that reads and writes has both."""

    READ = "read"
    WRITE = "write"
    """Change something or use a model."""
    OPERATOR = "operator"
    """Create and revoke keys, and change settings of the service."""
    PROPOSE = "propose"
    """Read the material of one improvement and propose prompts for it. A key with this scope has no other."""


UNBOUND = frozenset(Scope) - {Scope.PROPOSE}
"""The scopes that are not for one thing only."""


REPORT_KEY = "/.well-known/learnloop-report-key"
"""Path of the public key by which the service signs reports."""
PUBLIC = frozenset({"/", "/favicon.ico", "/health/live", "/health/ready", "/docs", "/openapi.json", REPORT_KEY})
"""Paths that need no key. All others do, including any added later."""
DOCUMENTATION_FILES = "/static-offline-docs/"
"""Path of the files that the documentation page loads."""
DASHBOARD_FILES = "/assets/"
"""Path of the files that the dashboard loads."""
PAGES = "/ui"
"""Path of the dashboard's pages. They need no key, but show more in their head to a caller with one."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OPERATOR = ("/keys", "/settings", "/budgets")
SESSION = "/session"
"""Path to sign in, sign out and ask who is signed in. Any key can use it."""


SESSIONS = "/sessions/"
_MODELS = "/v1/"
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
"""Paths of Anthropic's protocol."""
_AGENT_PATHS = ("", "/outcome", "/v1/chat/completions", "/v1/responses", *ANTHROPIC)
"""Paths of its own session that an agent can use. Those that begin with `/v1` also work without the session's
prefix."""
_MODEL_LIST = "/v1/models"
"""Path where an agent finds its session's model, under any name."""
_PROPOSER_READS, _PROPOSER_WRITES = ("material", r"candidates/\d+"), ("candidates",)
"""Paths of its improvement that a proposer can use."""
MODEL_CALLS = frozenset(path for path in _AGENT_PATHS if path.startswith("/v1/"))


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path as routes define it, without the prefix of a proxy or of an application that mounts this one."""
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def is_public(path: str) -> bool:
    """Whether the path needs no key."""
    return path in PUBLIC or path.startswith((DOCUMENTATION_FILES, DASHBOARD_FILES))


def is_page(method: str, path: str) -> bool:
    """Whether the request is for a page of the dashboard, which callers get with and without a key."""
    return method == "GET" and (path == PAGES or path.startswith(f"{PAGES}/"))


def needed(method: str, path: str) -> Scope | None:
    """Return the scope that a request needs; None if any key will do."""
    if path == SESSION:
        return None
    if any(path == start or path.startswith(f"{start}/") for start in _OPERATOR):
        return Scope.OPERATOR
    return Scope.READ if method in READING else Scope.WRITE


def is_for_agent(path: str, session_id: str) -> bool:
    """Whether the agent of that session can make requests to the path."""
    in_session = path.removeprefix(f"{SESSIONS}{session_id}")
    if in_session == path:
        return path in MODEL_CALLS or _is_model_list(path)
    return in_session in _AGENT_PATHS or _is_model_list(in_session)


def is_for_proposer(method: str, path: str, improvement_id: str) -> bool:
    """Whether a key for proposals to that improvement can make the request."""
    return any(
        re.fullmatch(rf"/improvements/{re.escape(improvement_id)}/{rest}", path)
        for rest in (_PROPOSER_READS if method in READING else _PROPOSER_WRITES if method == "POST" else ())
    )


def _is_model_list(path: str) -> bool:
    return path == _MODEL_LIST or path.startswith(f"{_MODEL_LIST}/")


def model_path(path: str) -> str | None:
    """Return the path from `/v1` on, if that is its beginning or follows a session's prefix; otherwise None."""
    if path.startswith(SESSIONS):
        path = path.removeprefix(SESSIONS).partition("/")[2]
        path = f"/{path}"
    return path if path.startswith(_MODELS) else None
