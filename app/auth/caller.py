"""Who makes a request, and what is theirs."""

from dataclasses import dataclass

from app.auth.scopes import Scope

ANY_PROJECT = "*"
"""The project of keys that see every project; no project can be called so."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request."""

    actor: str
    """As events name it: `key:PREFIX`, or `local` where no keys are needed."""
    project: str | None
    """The one project whose things the caller sees; None: all."""
    scopes: frozenset[Scope]

    @property
    def namespace(self) -> str:
        """Where the caller's own names, such as idempotency keys, lie: apart from those of other projects."""
        return self.project or ANY_PROJECT

    def sees(self, project: str | None) -> bool:
        """Whether things of that project are the caller's."""
        return self.project is None or self.project == project


LOCAL = Caller("local", None, frozenset(Scope))
"""Whoever reaches a service that needs no keys: it listens on loopback only."""
