"""The caller of a request, and what it has access to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learnloop_service.app.auth.scopes import UNBOUND, Scope
from learnloop_service.app.errors import Forbidden

ANY_PROJECT = "*"
"""The project of keys that see all projects. No project can have this name."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A key for one agent session. It can belong to an earlier attempt, or to a session that is over."""

    session_id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    actor: str
    """Name in events: `key:PREFIX`, `session:ID`, or `local` if no keys are required."""
    project: str | None
    """The only project that the caller can see; None for all projects."""
    scopes: frozenset[Scope]
    agent: SessionKey | None = None
    """Session whose agent the caller is, and the only one that it can access; None if it is not an agent."""
    improvement_id: str | None = None
    """The only improvement that the caller can access, in order to propose prompts; None without such a limit."""
    key_sha256: str | None = None
    """Hash of the API key that the caller used or signed in with; None if it needed none or is an agent."""

    started_by: Mapping[str, str | None] | None = None
    """Id and name of that key, for what the caller starts; see `StartedRow`."""

    @classmethod
    def on_order(cls, order: str, project: str, started_by: Mapping[str, Any] | None) -> "Caller":
        """Return the caller that carries out an improvement or a schedule."""
        by = {**(started_by or {"id": None, "name": None}), "order": order}
        return cls(order, project, frozenset(Scope), started_by=by)

    @property
    def namespace(self) -> str:
        """The namespace of names such as idempotency keys, separate for each project."""
        return self.project or ANY_PROJECT

    def sees(self, project: str | None) -> bool:
        """Whether the caller has access to this project."""
        return self.project is None or self.project == project

    def project_of(self, named: str | None) -> str | None:
        """Return the project that a request's body names, else the caller's own. Raises Forbidden for another one."""
        if not self.sees(named or self.project):
            raise Forbidden(f"This API key belongs to project {self.project}; body.project cannot be another one.")
        return named or self.project


LOCAL = Caller("local", None, UNBOUND)
"""The caller of every request to a service that requires no keys, because it listens on loopback only."""
