"""Database rows. Alembic's migrations make the tables; `alembic check` keeps both in step.

A rate is in [0, 1], a time is timestamptz, an id is a ULID (sortable by creation) unless said otherwise.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.db.json_text import StorableText
from app.domain.delivery_state import DeliveryState
from app.domain.evaluation_state import EvaluationStatus
from app.domain.run_state import LIVE, RunStatus
from app.domain.stored_request import StoredRequest

Json = Any
_LIVE = ", ".join(sorted(f"'{status}'" for status in LIVE))
_KNOWN = ", ".join(sorted(f"'{status}'" for status in RunStatus))
_DELIVERY_STATES = ", ".join(sorted(f"'{state}'" for state in DeliveryState))
_EVALUATION_STATES = ", ".join(sorted(f"'{status}'" for status in EvaluationStatus))
_PENDING = f"state = '{DeliveryState.PENDING}'"


class Base(DeclarativeBase):
    """What Alembic compares the database with."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy from the class
        datetime: DateTime(timezone=True),
        dict[str, Json]: JSONB,
        list[Json]: JSONB,
        str: StorableText,
    }


def _run_id() -> Mapped[str]:
    return mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)


class Run(Base):
    """One accepted learn-loop."""

    __tablename__ = "run"
    __table_args__ = (
        CheckConstraint(f"status IN ({_KNOWN})", name="status"),
        Index("ix_run_lease", "lease_until", postgresql_where=text("status = 'running'")),
        # Two live runs must not train one model.
        Index(
            "uq_run_live_model",
            "backend",
            "model_project",
            "model_name",
            unique=True,
            postgresql_where=text(f"status IN ({_LIVE})"),
        ),
        Index("ix_run_status_id", "status", "id"),
        Index("ix_run_model_project_id", "model_project", "id"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    status: Mapped[str] = mapped_column(Text, default=RunStatus.QUEUED)
    request: Mapped[dict[str, Json]]
    """The accepted request with all defaults filled in; see `stored_request`."""
    environment: Mapped[str]
    judge: Mapped[str]
    backend: Mapped[str]
    model_project: Mapped[str]
    model_name: Mapped[str]
    base_model: Mapped[str]
    owner: Mapped[str | None]
    """The worker that holds the run's lease."""
    epoch: Mapped[int] = mapped_column(default=0, server_default="0")
    """Raised by each claim; every commit of a worker names the epoch it claimed with."""
    lease_until: Mapped[datetime | None]
    """Until then, by the database's clock, nobody else may claim it."""
    claims: Mapped[int] = mapped_column("attempts", default=0, server_default="0")
    """Claims since progress was last saved: a run that kills its workers ends."""
    engine: Mapped[str | None]
    """The engine that has the run's model, once it was driven; only workers that reach it can go on."""
    reproducible: Mapped[bool | None]
    """Whether sampling and training repeat to the bit, as the backend reports; None until the run was driven."""
    reproducible_reason: Mapped[str | None]
    wait_reason: Mapped[str | None]
    """Why a paused run is paused, or what a running one waits for."""
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    pause_requested: Mapped[bool] = mapped_column(default=False, server_default="false")
    no_signal: Mapped[str | None]
    """Why the last iteration taught nothing (training/no_signal.py); None if it did."""
    no_signal_iterations: Mapped[int] = mapped_column(default=0, server_default="0")
    """How many iterations in a row taught nothing, up to the last one, since the run was last resumed or retried."""
    warnings: Mapped[list[Json]] = mapped_column(default=list, server_default="[]")
    """What was foreseen when the run was accepted."""
    parent_run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="SET NULL"))
    """The run that this one was forked from, at its step `parent_step`."""
    parent_step: Mapped[int | None]
    event_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Of the run's newest event."""
    iterations_total: Mapped[int]
    next_iteration: Mapped[int] = mapped_column(default=0)
    """The iteration whose result is saved next; 0 until the baseline is saved."""
    phase: Mapped[str | None]
    phase_iteration: Mapped[int | None]
    phase_done: Mapped[int | None]
    phase_total: Mapped[int | None]
    step: Mapped[int | None]
    best_step: Mapped[int | None]
    best_success: Mapped[float | None]
    rollouts: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    judge_prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    judge_completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    judge_cost_usd: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """Of the calls whose price is known."""
    error: Mapped[str | None]
    results_error: Mapped[str | None]
    """Why the folder of results is not complete; the database is."""
    summary: Mapped[dict[str, Json] | None]
    """Before and after, written when the run completes."""
    pruned: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """When what was deleted because of its age (app/operations/prune.py)."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    @property
    def stored_request(self) -> StoredRequest:
        """`request`, parsed on each call: queries for many runs do not pay for it."""
        return StoredRequest.parse(self.request)


class Iteration(Base):
    """What one rollout-judge-train cycle did; iteration 0 is the baseline."""

    __tablename__ = "iteration"

    run_id: Mapped[str] = _run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int]
    best_step: Mapped[int]
    reward_mean: Mapped[float | None]
    reward_median: Mapped[float | None]
    reward_min: Mapped[float | None]
    reward_max: Mapped[float | None]
    reward_count: Mapped[int]
    success: Mapped[float | None]
    malformed: Mapped[float | None]
    failed_rollouts: Mapped[int]
    skipped_groups: Mapped[dict[str, Json]]
    no_signal: Mapped[str | None]
    """Why none of its groups could be trained on (training/no_signal.py); None if one could."""
    train_metrics: Mapped[dict[str, Json]]
    timing: Mapped[dict[str, Json]]
    finished_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Evaluation(Base):
    """Held-out figures of one checkpoint."""

    __tablename__ = "evaluation"

    run_id: Mapped[str] = _run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    split: Mapped[str] = mapped_column(Text, primary_key=True)
    mode: Mapped[str] = mapped_column(Text, primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    scenarios: Mapped[int]
    success: Mapped[float]
    mean_reward: Mapped[float]
    malformed: Mapped[float]
    turns: Mapped[float]


class Trajectory(Base):
    """The record of one rollout: of a run's training or evaluation, or of a question that somebody asked."""

    __tablename__ = "trajectory"
    __table_args__ = (
        Index("ix_trajectory_run_id_seq", "run_id", "seq"),
        Index("ix_trajectory_run_id_iteration_seq", "run_id", "iteration", "seq"),
        Index("ix_trajectory_run_id_scenario_id_seq", "run_id", "scenario_id", "seq"),
        Index("ix_trajectory_run_id_split_seq", "run_id", "split", "seq"),
        Index(
            "uq_trajectory_evaluation_id_slot",
            "evaluation_id",
            "slot",
            unique=True,
            postgresql_where=text("evaluation_id IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    """The order in which they were saved; lists go by it."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    project: Mapped[str | None]
    """Of a question to a model by name, and of an evaluation; a run's trajectories belong to the run's project."""
    evaluation_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("evaluation_job.id", ondelete="CASCADE"))
    slot: Mapped[str | None]
    """In an evaluation: numbers of model, scenario and sample, such as `0/12/1`."""
    kind: Mapped[str]
    """train, evaluation, showcase or ask."""
    iteration: Mapped[int | None]
    split: Mapped[str]
    mode: Mapped[str]
    """sampled or greedy."""
    model: Mapped[str]
    step: Mapped[int | None]
    scenario_id: Mapped[str]
    scenario: Mapped[dict[str, Json]]
    """The task and the reference."""
    messages: Mapped[list[Json]]
    """OpenAI's form, without token-level log-probabilities."""
    tools: Mapped[list[Json]]
    outcome: Mapped[dict[str, Json]]
    score: Mapped[float | None]
    score_explanation: Mapped[str | None]
    score_parts: Mapped[dict[str, Json]]
    reward: Mapped[float | None]
    reward_parts: Mapped[dict[str, Json]]
    advantage: Mapped[float | None]
    success: Mapped[bool | None]
    error: Mapped[str | None]
    turns: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    seconds: Mapped[float]
    started_at: Mapped[datetime]


class Reflection(Base):
    """What a reflective environment had learned after an iteration, and its showcase."""

    __tablename__ = "reflection"

    run_id: Mapped[str] = _run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[dict[str, Json]]
    trajectory_id: Mapped[str]
    """The showcase's trajectory."""


class EvaluationJob(Base):
    """A comparison of models on the same scenarios, asked for by itself. Its rollouts are trajectories."""

    __tablename__ = "evaluation_job"
    __table_args__ = (
        CheckConstraint(f"status IN ({_EVALUATION_STATES})", name="status"),
        Index("ix_evaluation_job_project_id", "project", "id"),
        Index("ix_evaluation_job_open", "created_at", postgresql_where=text("status IN ('queued', 'running')")),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    status: Mapped[str] = mapped_column(Text, default=EvaluationStatus.QUEUED)
    request: Mapped[dict[str, Json]]
    """The accepted request with all defaults filled in; see app/domain/stored_evaluation.py."""
    engine: Mapped[str | None]
    """The engine that has the models; only workers that reach it can drive the evaluation."""
    owner: Mapped[str | None]
    """The worker that holds the lease."""
    epoch: Mapped[int] = mapped_column(default=0, server_default="0")
    """Raised by each claim; every commit of a worker names the epoch it claimed with."""
    lease_until: Mapped[datetime | None]
    claims: Mapped[int] = mapped_column(default=0, server_default="0")
    """Claims since a rollout was last saved: an evaluation that kills its workers ends."""
    cancel_requested: Mapped[bool] = mapped_column(default=False, server_default="false")
    wait_reason: Mapped[str | None]
    """What a running one waits for."""
    done: Mapped[int] = mapped_column(default=0, server_default="0")
    """Rollouts that have been judged."""
    total: Mapped[int]
    judge: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """What the judge's calls cost so far: requests, tokens, dollars."""
    report: Mapped[dict[str, Json] | None]
    """The figures, written when it completes."""
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class JudgeCall(Base):
    """What one verdict of a judge model cost."""

    __tablename__ = "judge_call"
    __table_args__ = (Index("ix_judge_call_run_id_iteration", "run_id", "iteration"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    run_id: Mapped[str] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    iteration: Mapped[int]
    judge: Mapped[str]
    model: Mapped[str]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    cost_usd: Mapped[float | None]
    requests: Mapped[int]
    seconds: Mapped[float]
    cached: Mapped[bool]
    error: Mapped[str | None]


class Verdict(Base):
    """A judge model's verdict, by the hash of everything that decided it."""

    __tablename__ = "verdict"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[dict[str, Json]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class JudgeRate(Base):
    """How far the requests to a judge model are ahead of its limits; all workers share it."""

    __tablename__ = "judge_rate"

    model: Mapped[str] = mapped_column(Text, primary_key=True)
    requests_at: Mapped[datetime]
    """When the next request may be sent, as far as the number of requests goes."""
    tokens_at: Mapped[datetime]
    """When the next request may be sent, as far as the number of tokens goes."""


class Document(Base):
    """A graph or a set of scenarios that a request brought, by the SHA-256 of its canonical JSON."""

    __tablename__ = "document"

    project: Mapped[str] = mapped_column(Text, primary_key=True, server_default="*")
    """Whose it is; `*`: all projects may use it."""
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str]
    """graph or scenarios."""
    content: Mapped[list[Json]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DatasetVersion(Base):
    """A version of a named inbox, or of a named set of scenarios, and what it was made from. Rows never change."""

    __tablename__ = "dataset_version"
    __table_args__ = (
        UniqueConstraint("project", "kind", "name", "version"),
        Index("ix_dataset_version_sha256", "sha256"),
        CheckConstraint("kind IN ('inbox', 'scenarios')", name="kind"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    """Whose it is; `*`: all projects may use it."""
    kind: Mapped[str]
    name: Mapped[str]
    version: Mapped[int]
    """From 1."""
    sha256: Mapped[str] = mapped_column(String(64))
    """Of the content: of an inbox's emails, or the document's of that kind."""
    size: Mapped[int]
    """Emails or scenarios."""
    environment: Mapped[str]
    """What it is for."""
    inbox_sha256: Mapped[str | None] = mapped_column(String(64))
    """Of scenarios: the inbox that they are about."""
    origin: Mapped[dict[str, Json]]
    """Where it comes from: `source` is `api` or `prepared`; then settings, hashes of sources, counts."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class InboxPart(Base):
    """A piece of an uploaded inbox's file, compressed, from which every service and worker makes its own copy."""

    __tablename__ = "inbox_part"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes]


class Feedback(Base):
    """What somebody did with an email, or thought of it. Rows never change: the order of arrival does not matter."""

    __tablename__ = "feedback"
    __table_args__ = (
        UniqueConstraint("project", "event_id"),
        Index("ix_feedback_trajectory_id", "trajectory_id"),
        Index("ix_feedback_against_id", "against_id"),
        Index("ix_feedback_run_id_id", "run_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    """The trajectory's; empty for one of no project."""
    event_id: Mapped[str]
    """The sender's own id of the event: a second one with it in the project is the same event."""
    trajectory_id: Mapped[str] = mapped_column(Text, ForeignKey("trajectory.id", ondelete="CASCADE"))
    """Whose email it is about; of a preference, the one preferred."""
    against_id: Mapped[str | None] = mapped_column(Text, ForeignKey("trajectory.id", ondelete="CASCADE"))
    """Of a preference, the other one."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    """The run of that trajectory; None for one that was asked of a model by name."""
    type: Mapped[str]
    confidence: Mapped[float]
    """In (0, 1]; of preferences and thumbs."""
    source: Mapped[str]
    """api, or simulator for invented events."""
    occurred_at: Mapped[datetime]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Checkpoint(Base):
    """A step of a run's model that the backend keeps."""

    __tablename__ = "checkpoint"

    run_id: Mapped[str] = _run_id()
    step: Mapped[int] = mapped_column(primary_key=True)
    iteration: Mapped[int]
    model: Mapped[str | None]
    """What the backend calls it; None for those that were saved before this was kept."""
    success: Mapped[float | None]
    """Sampled validation success, where it was evaluated."""
    is_best: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Promotion(Base):
    """A checkpoint under a name that its users know. The newest row of a name counts; older ones are its history."""

    __tablename__ = "promotion"
    __table_args__ = (Index("ix_promotion_project_name_id", "project", "name", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    """What it is promoted as."""
    backend: Mapped[str]
    model_name: Mapped[str]
    """Of a model of the same project."""
    step: Mapped[int]
    actor: Mapped[str]
    evidence: Mapped[dict[str, Json] | None]
    """Of a trial that it won: the evaluation, and what its pairs said; None: promoted without one."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Journal(Base):
    """What the iteration under way has finished (see training/journal.py); emptied when the iteration is saved."""

    __tablename__ = "journal"

    run_id: Mapped[str] = _run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    epoch: Mapped[int]
    value: Mapped[bytes]
    """JSON text, compressed by zlib."""
    checksum: Mapped[int | None] = mapped_column(BigInteger)
    """CRC-32 of the key and the value; None: written by an earlier version."""
    kept_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Event(Base):
    """What happened to a run: append-only, numbered from 1 without a gap."""

    __tablename__ = "event"

    run_id: Mapped[str] = _run_id()
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    type: Mapped[str]
    version: Mapped[int] = mapped_column(default=1)
    """Of the type's `data`."""
    iteration: Mapped[int | None]
    actor: Mapped[str]
    """Who did it: `worker:...`, `key:PREFIX`, or `local` where no keys are needed."""
    data: Mapped[dict[str, Json]]
    occurred_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class ApiKey(Base):
    """A key to one project. The key itself is nowhere: only its hash."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    name: Mapped[str]
    prefix: Mapped[str]
    """The key's first characters, to tell it by."""
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Json]]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class IdempotencyKey(Base):
    """The reply to a request that created something, for its repetition. Kept 24 hours."""

    __tablename__ = "idempotency_key"

    project: Mapped[str] = mapped_column(Text, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    """Of method, path and body."""
    status: Mapped[int | None]
    """Of the reply; None while the first request is under way."""
    body: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    lease_until: Mapped[datetime | None]
    """Until then nobody else handles the request, which renews it. None: a minute from `created_at`."""


class LedgerEntry(Base):
    """What a phase of an iteration used. `wasted`: by work that was lost, or that taught nothing."""

    __tablename__ = "ledger_entry"
    __table_args__ = (Index("ix_ledger_entry_run_id_iteration", "run_id", "iteration"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    run_id: Mapped[str] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    iteration: Mapped[int]
    phase: Mapped[str]
    seconds: Mapped[float]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    usd: Mapped[float | None]
    wasted: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class WebhookEndpoint(Base):
    """Where events are sent: those of one run, of a project's runs, or (the one from FRONTEND_URL) of all runs."""

    __tablename__ = "webhook_endpoint"
    __table_args__ = (
        Index("ix_webhook_endpoint_project", "project"),
        Index("ix_webhook_endpoint_run_id", "run_id"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str | None]
    """None: every project's."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    """None: every run of the project."""
    url: Mapped[str]
    events: Mapped[list[Json]]
    """Types that are sent; empty: all."""
    secret: Mapped[bytes | None]
    """Encrypted. None: deliveries are not signed."""
    previous_secret: Mapped[bytes | None]
    """Signs too until `previous_until`, so that a receiver can change over."""
    previous_until: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class WebhookAttempt(Base):
    """One try to send a delivery."""

    __tablename__ = "webhook_attempt"

    delivery_id: Mapped[str] = mapped_column(
        String(26), ForeignKey("webhook_delivery.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    started_at: Mapped[datetime]
    seconds: Mapped[float | None]
    status: Mapped[int | None]
    """The receiver's HTTP status; None if there was no reply."""
    error: Mapped[str | None]


class WebhookDelivery(Base):
    """One message to one receiver, written in the transaction of what it tells."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        CheckConstraint(f"state IN ({_DELIVERY_STATES})", name="state"),
        Index(
            "ix_webhook_delivery_next",
            "project",
            "receiver",
            "next_attempt_at",
            postgresql_where=text(f"{_PENDING} AND is_next"),
        ),
        Index("ix_webhook_delivery_pending", "project", "receiver", postgresql_where=text(_PENDING)),
        Index("ix_webhook_delivery_run_id_state", "run_id", "state"),
        Index(
            "ix_webhook_delivery_turn",
            "run_id",
            "receiver",
            "event_seq",
            "seq",
            postgresql_where=text(_PENDING),
        ),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    run_id: Mapped[str] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    endpoint_id: Mapped[str | None] = mapped_column(
        String(26), ForeignKey("webhook_endpoint.id", ondelete="SET NULL"), index=True
    )
    project: Mapped[str]
    """The run's. Projects take turns, and so do receivers within a project."""
    receiver: Mapped[str]
    """The endpoint's id, also after it was deleted; the URL where there was none."""
    is_next: Mapped[bool] = mapped_column(default=False, server_default="false")
    """It is the first pending one of its run and receiver (app/webhooks/turns.py): only such are sent."""
    event_seq: Mapped[int | None] = mapped_column(BigInteger)
    event_type: Mapped[str | None]
    iteration: Mapped[int | None]
    url: Mapped[str]
    body: Mapped[str]
    """The exact JSON text that is sent, on every attempt."""
    state: Mapped[str] = mapped_column(Text, default=DeliveryState.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    delivered_at: Mapped[datetime | None]
