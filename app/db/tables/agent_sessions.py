"""Sessions of agents that own their loop, and every model call in them."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text, func, text
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base, PromptedRow
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.environment.json_type import Json

_STATES = ", ".join(sorted(f"'{state}'" for state in AgentSessionState))
_OPEN = f"state = '{AgentSessionState.OPEN}'"


def _session_id() -> Mapped[str]:
    return mapped_column(String(26), ForeignKey("agent_session.id", ondelete="CASCADE"), primary_key=True)


class AgentSession(PromptedRow, Base):
    """An agent's work on one task with one checkpoint and its prompt, from its first call to its outcome."""

    __tablename__ = "agent_session"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        Index("ix_agent_session_project_id", "project", "id"),
        Index("ix_agent_session_open", "project", "expires_at", postgresql_where=text(_OPEN)),
        Index("ix_agent_session_user_hash", "user_hash", postgresql_where=text("user_hash IS NOT NULL")),
        Index("ix_agent_session_release_id", "release_id", postgresql_where=text("release_id IS NOT NULL")),
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
    """The model's name as given when the session was opened."""
    model: Mapped[str]
    """The checkpoint under its server's name. Later training or promotion does not change it."""
    step: Mapped[int | None]
    """The checkpoint's step; None for a base model."""
    backend: Mapped[str]
    model_run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="SET NULL"), index=True)
    """A run that trains the model; None if only the engine knows the model."""
    seed: Mapped[int] = mapped_column(BigInteger)
    """The seed from which `CallSeeds` derives the seed of each call."""
    sampling: Mapped[dict[str, Json] | None]
    """temperature and max_tokens of every call; None if the client's own parameters apply."""
    max_calls: Mapped[int | None]
    """Maximum number of calls in one attempt."""
    max_tokens: Mapped[int | None]
    """Maximum number of tokens, in prompts and sampled replies together."""
    explicit_restart: Mapped[bool]
    """Whether only an explicit request restarts the session. If not, so does repeating its first request once
    answered."""
    labels: Mapped[dict[str, Json]] = mapped_column("metadata")
    """Labels that the opener gave it."""
    state: Mapped[str] = mapped_column(Text, default=AgentSessionState.OPEN)
    attempt: Mapped[int] = mapped_column(default=1)
    """Number of the current attempt, from 1."""
    uses: Mapped[int] = mapped_column(default=0)
    """Number of requests in this attempt."""
    calls: Mapped[int] = mapped_column(default=0)
    """Number of calls in all attempts."""
    opening_digest: Mapped[str | None] = mapped_column(String(64))
    """Digest of the very first request."""
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    warnings: Mapped[list[Json]] = mapped_column(default=list, server_default="[]")
    """Parts of the agent's requests that had no effect, one sentence for each."""
    outcome: Mapped[dict[str, Json] | None]
    """Reward, parts, output and reason, as far as the outcome has them."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    """With `iteration` and `entry`, identifies the session's rollout for a worker that takes over the run."""
    iteration: Mapped[int | None]
    entry: Mapped[str | None]
    """The rollout's name in the journal, or its slot in an evaluation."""
    evaluation_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("evaluation_job.id", ondelete="CASCADE"))
    """The evaluation that the rollout belongs to, if it is not a run's."""
    opener_sha256: Mapped[str | None] = mapped_column(String(64))
    """Hash of the API key that opened the session, which ends with the key; None for a rollout, or without keys."""
    user_hash: Mapped[str | None] = mapped_column(String(64))
    """HMAC-SHA-256 of the user's key under the service's secret; None if the opener named no user."""
    release_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("release.id", ondelete="SET NULL"))
    """The release that was live when the session was opened; None without one."""
    arm: Mapped[str | None]
    """The arm whose checkpoint the session has, stable or candidate; None without a release."""
    probability: Mapped[float | None]
    """Probability of that arm; None without a release."""
    may_train: Mapped[bool] = mapped_column(default=False, server_default="false")
    """Whether the user consented to training on it."""
    explored: Mapped[bool | None]
    """Whether it is sampled at temperature 1 whatever its client asks; None if no coin was tossed for it."""
    explore_share: Mapped[float | None]
    """Probability of that."""
    opened_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class AgentSessionKey(Base):
    """A key that identifies one session. Only its hash is stored."""

    __tablename__ = "agent_session_key"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    session_id: Mapped[str] = mapped_column(String(26), ForeignKey("agent_session.id", ondelete="CASCADE"), index=True)
    replaced_at: Mapped[datetime | None]
    """When a restart issued a new key. A client that still uses this one belongs to an earlier attempt."""


class SessionCall(Base):
    """One model call. Repeating a request within an attempt makes another call, unless it is a retry."""

    __tablename__ = "session_call"
    __table_args__ = (
        Index("uq_session_call_session_id_digest_occurrence", "session_id", "digest", "occurrence", unique=True),
        Index("ix_session_call_holder", "holder", postgresql_where=text("holder IS NOT NULL")),
    )

    session_id: Mapped[str] = _session_id()
    number: Mapped[int] = mapped_column(primary_key=True)
    """Number of the call, from 1, in the order in which calls began."""
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the request in its canonical form."""
    occurrence: Mapped[int]
    """How many requests with the same digest preceded it in the attempt."""
    protocol: Mapped[str]
    """Protocol of the client that first made it: chat, responses or messages."""
    request: Mapped[bytes]
    """Messages, tools and parameters, as compressed JSON."""
    seed: Mapped[int] = mapped_column(BigInteger)
    answer: Mapped[bytes | None]
    """The completion with token ids and log-probabilities, as compressed JSON; None until answered."""
    model: Mapped[str | None]
    """The exact checkpoint that replied."""
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    completion_tokens: Mapped[int] = mapped_column(default=0)
    holder: Mapped[str | None]
    """The process that is sampling it."""
    held_until: Mapped[datetime | None]
    """End of the holder's lease, which it renews; no other process samples the call before."""
    begun_at: Mapped[datetime] = mapped_column(server_default=func.now())
    answered_at: Mapped[datetime | None]


class SessionUse(Base):
    """A request of one attempt, linked to the call that answers it, which an earlier attempt may have made already."""

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
    """Number of the request, from 1, in the attempt's order."""
    digest: Mapped[str] = mapped_column(String(64))
    occurrence: Mapped[int]
    idempotency_key: Mapped[str | None]
    begun_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    delivered_at: Mapped[datetime | None]
    """When the whole reply had been sent, written a moment later. None if it is not known to have been delivered."""
