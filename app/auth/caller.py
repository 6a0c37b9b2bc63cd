"""Who makes a request, and what is theirs."""

from dataclasses import dataclass

from app.auth.scopes import Scope

ANY_PROJECT = "*"
"""The project of keys that see all projects. No project can have this name."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A key that names one agent session; perhaps of an earlier start of the agent, or of a session that is over."""

    session_id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request."""

    actor: str
    """The name in events: `key:PREFIX`, `session:ID`, or `local` if no keys are required."""
    project: str | None
    """The only project that the caller sees; None: all."""
    scopes: frozenset[Scope]
    agent: SessionKey | None = None
    """The session that the caller is the agent of, and all that it reaches of the project; None: it is none."""
    key_sha256: str | None = None
    """Of the API key that the caller has, or signed in with; None: it needed none, or is an agent."""

    @property
    def namespace(self) -> str:
        """The namespace of names such as idempotency keys, separate for each project."""
        return self.project or ANY_PROJECT

    def sees(self, project: str | None) -> bool:
        """Whether the caller has access to this project."""
        return self.project is None or self.project == project


LOCAL = Caller("local", None, frozenset(Scope))
"""Every caller of a service that requires no keys, because it listens on loopback only."""
