"""Sessions of agents that own their loop, and every call that they made of their model."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text, func, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base
from app.domain.agent_session_state import AgentSessionState
from environment.json_type import Json

_STATES = ", ".join(sorted(f"'{state}'" for state in AgentSessionState))
_OPEN = f"state = '{AgentSessionState.OPEN}'"


def _session_id() -> Mapped[str]:
    return mapped_column(String(26), ForeignKey("agent_session.id", ondelete="CASCADE"), primary_key=True)


class AgentSession(Base):
    """One attempt of an agent at one task, with one checkpoint, from its first call to its outcome."""

    __tablename__ = "agent_session"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        Index("ix_agent_session_project_id", "project", "id"),
        Index("ix_agent_session_open", "project", "expires_at", postgresql_where=text(_OPEN)),
        Index(
            "uq_agent_session_run_id_iteration_entry",
            "run_id",
            "iteration",
            "entry",
            unique=True,
            postgresql_where=text("run_id IS NOT NULL"),
        ),
        Index(
            "uq_agent_session_evaluation_id_entry",
            "evaluation_id",
            "entry",
            unique=True,
            postgresql_where=text("evaluation_id IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    asked_model: Mapped[str]
    """The model's name as it was given when the session was opened."""
    model: Mapped[str]
    """The checkpoint, as its server knows it. It stays the same, whatever is trained or promoted meanwhile."""
    step: Mapped[int | None]
    """Of the checkpoint; None: a base model."""
    backend: Mapped[str]
    model_run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="SET NULL"), index=True)
    """A run that trains the model; None: only the engine knows it."""
    seed: Mapped[int] = mapped_column(BigInteger)
    """From it comes the seed of each call, as `CallSeeds` says."""
    sampling: Mapped[dict[str, Json] | None]
    """temperature and max_tokens of every call; None: the client's own parameters count."""
    max_calls: Mapped[int | None]
    """Of one start of the agent."""
    max_tokens: Mapped[int | None]
    """Of all prompts and replies that are sampled."""
    explicit_restart: Mapped[bool]
    """False: repeating the very first request, once it was answered, restarts the session."""
    labels: Mapped[dict[str, Json]] = mapped_column("metadata")
    """The opener's own."""
    state: Mapped[str] = mapped_column(Text, default=AgentSessionState.OPEN)
    attempt: Mapped[int] = mapped_column(default=1)
    """Which start of the agent this is."""
    uses: Mapped[int] = mapped_column(default=0)
    """Requests of this attempt."""
    calls: Mapped[int] = mapped_column(default=0)
    """Calls of all attempts."""
    opening_digest: Mapped[str | None] = mapped_column(String(64))
    """Of the very first request."""
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    outcome: Mapped[dict[str, Json] | None]
    """reward, parts, output, reason: those that were given."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    """With the next two, the rollout that the session is of: a worker that takes the run over finds it by them."""
    iteration: Mapped[int | None]
    entry: Mapped[str | None]
    """The rollout's name in the journal, or its slot in an evaluation."""
    evaluation_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("evaluation_job.id", ondelete="CASCADE"))
    """In place of a run."""
    opener_sha256: Mapped[str | None] = mapped_column(String(64))
    """Of the API key that opened the session, which ends with it; None: a rollout's, or no key was required."""
    opened_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class AgentSessionKey(Base):
    """A key that names one session. The key itself is nowhere: only its hash."""

    __tablename__ = "agent_session_key"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    session_id: Mapped[str] = mapped_column(String(26), ForeignKey("agent_session.id", ondelete="CASCADE"), index=True)
    replaced_at: Mapped[datetime | None]
    """When a restart gave out another one: who still has this one belongs to an earlier start of the agent."""


class SessionCall(Base):
    """One call of the model. A request that is made again in the same attempt is a call of its own."""

    __tablename__ = "session_call"
    __table_args__ = (
        Index("uq_session_call_session_id_digest_occurrence", "session_id", "digest", "occurrence", unique=True),
        Index("ix_session_call_holder", "holder", postgresql_where=text("holder IS NOT NULL")),
    )

    session_id: Mapped[str] = _session_id()
    number: Mapped[int] = mapped_column(primary_key=True)
    """From 1, in the order in which they began."""
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the request in its canonical form."""
    occurrence: Mapped[int]
    """How many requests of the same digest came before it in an attempt."""
    protocol: Mapped[str]
    """Of the client that made it first: chat, responses or messages."""
    request: Mapped[bytes]
    """Messages, tools and parameters: compressed JSON."""
    seed: Mapped[int] = mapped_column(BigInteger)
    answer: Mapped[bytes | None]
    """The completion, with token ids and log-probabilities: compressed JSON; None: not answered yet."""
    model: Mapped[str | None]
    """The exact checkpoint that replied."""
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    completion_tokens: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None]
    """The process that samples it."""
    held_until: Mapped[datetime | None]
    """Until then nobody else samples it; its holder renews that."""
    begun_at: Mapped[datetime] = mapped_column(server_default=func.now())
    answered_at: Mapped[datetime | None]


class SessionUse(Base):
    """A request of one attempt, and the call that answers it: a call of an earlier attempt, if that had the same."""

    __tablename__ = "session_use"
    __table_args__ = (
        Index(
            "uq_session_use_session_id_attempt_digest_occurrence",
            "session_id",
            "attempt",
            "digest",
            "occurrence",
            unique=True,
        ),
    )

    session_id: Mapped[str] = _session_id()
    attempt: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """From 1, in the order in which the attempt made its requests."""
    digest: Mapped[str] = mapped_column(String(64))
    occurrence: Mapped[int]
    idempotency_key: Mapped[str | None]
    begun_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    delivered_at: Mapped[datetime | None]
    """When the whole reply had been sent; written a moment later. None: as far as one knows, it did not arrive."""
