"""Runs, their results, and the feedback on them."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Computed,
    ForeignKey,
    Identity,
    Index,
    String,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column, synonym

from learnloop_service.app.db.tables.base import Base, EventRow, run_id
from learnloop_service.app.db.tables.claimable import Claimable
from learnloop_service.app.domain.run_state import LIVE, RunStatus
from learnloop_service.app.domain.stored_request import StoredRequest
from learnloop_service.environment.json_type import Json

_LIVE = ", ".join(sorted(f"'{status}'" for status in LIVE))
_KNOWN = ", ".join(sorted(f"'{status}'" for status in RunStatus))

_SETTINGS_HASH = (
    "md5(((request - 'seed'::text) #- '{model,name}'::text[])::text"
    " || coalesce(parent_run_id, '') || coalesce('@' || parent_step::text, ''))"
)


class Run(Claimable):
    """One accepted learn-loop."""

    __tablename__ = "run"
    __table_args__ = (
        CheckConstraint(f"status IN ({_KNOWN})", name="status"),
        Index("ix_run_lease", "lease_until", postgresql_where=text("status = 'running'")),
        # Two live runs must not train the same model.
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
        Index("ix_run_model_project_claimed_at", "model_project", "claimed_at"),
        Index("ix_run_settings_hash_id", "settings_hash", "id"),
    )

    request: Mapped[dict[str, Json]]
    """The accepted request with all defaults filled in; see `stored_request`."""
    claims: Mapped[int] = mapped_column("attempts", default=0, server_default="0")
    environment: Mapped[str]
    judge: Mapped[str]
    backend: Mapped[str]
    model_project: Mapped[str]
    project = synonym("model_project")
    model_name: Mapped[str]
    base_model: Mapped[str]
    reproducible: Mapped[bool | None]
    """Whether sampling and training repeat bit for bit, as the backend reports; None before the run starts."""
    reproducible_reason: Mapped[str | None]
    pause_requested: Mapped[bool] = mapped_column(default=False, server_default="false")
    no_signal: Mapped[str | None]
    """Why the last iteration gave no training signal (training/no_signal.py); None if it gave one."""
    no_signal_iterations: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of iterations in a row without a training signal, up to the last one, since the last resume or retry."""
    causes: Mapped[list[Json]] = mapped_column(default=list, server_default="[]")
    """Names of the active diagnoses, the one that explains the others first; see app/runs/diagnoses.py."""
    diagnosis_pause: Mapped[str | None]
    """Diagnosis because of which the run's rule pauses it; None if there is none since the last resume."""
    warnings: Mapped[list[Json]] = mapped_column(default=list, server_default="[]")
    """Problems that were foreseen when the run was accepted."""
    defaults: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """Settings that the request did not give, by their paths: `value` and `reason`."""
    usual_learning_rate: Mapped[float | None]
    """Learning rate that suits the size and the tuning of the base; None if the size is unknown, or for the tiny
    base."""
    parent_run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="SET NULL"))
    """The run that this one was forked from, at that run's step `parent_step`."""
    parent_step: Mapped[int | None]
    event_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Number of the run's latest event."""
    iterations_total: Mapped[int]
    next_iteration: Mapped[int] = mapped_column(default=0)
    """The iteration whose result will be saved next; 0 until the baseline is saved."""
    phase: Mapped[str | None]
    phase_iteration: Mapped[int | None]
    phase_done: Mapped[int | None]
    phase_total: Mapped[int | None]
    rollout_failures: Mapped[dict[str, Json] | None]
    """`learnloop_service.training.types.RolloutFailures` of the newest iteration that made rollouts; None if none of
    them failed."""
    step: Mapped[int | None]
    best_step: Mapped[int | None]
    best_success: Mapped[float | None]
    rollouts: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    judge_prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    judge_completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    judge_cost_usd: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """Cost of the judge's calls whose price is known."""
    machine_price_per_hour: Mapped[float | None]
    """US dollars that an hour of the machine cost when the run began; None if no price was known."""
    results_error: Mapped[str | None]
    """Why the results folder is incomplete; the database has everything."""
    summary: Mapped[dict[str, Json] | None]
    """Comparison of before and after, written when the run completes."""
    pruned: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """When details of which kind were deleted because of their age (app/operations/prune.py)."""
    name: Mapped[str | None]
    """What the run is called: by its owner, or else by what its request sets; None if by its model's name."""
    tags: Mapped[list[Json]] = mapped_column(default=list, server_default="[]")
    """Its owner's tags, in the order in which they were given."""
    notes: Mapped[str] = mapped_column(default="", server_default="")
    starred: Mapped[bool] = mapped_column(default=False, server_default="false")
    settings_hash: Mapped[str] = mapped_column(Text, Computed(_SETTINGS_HASH, persisted=True))
    """Hash of what the run learns with: runs with the same hash differ at most in their seed and their model's name."""

    @property
    def stored_request(self) -> StoredRequest:
        """Parse and return `request`. Parsed on each call, so that queries for many runs do not pay for it."""
        return StoredRequest.parse(self.request)


class Iteration(Base):
    """The result of one rollout-judge-train cycle; iteration 0 is the baseline."""

    __tablename__ = "iteration"

    run_id: Mapped[str] = run_id()
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
    lost_rollouts: Mapped[dict[str, Json]] = mapped_column(default=dict, server_default="{}")
    """Number of them that were lost for reasons that are not the agent's, by
    `learnloop_service.training.types.FailureKind`."""
    skipped_groups: Mapped[dict[str, Json]]
    no_signal: Mapped[str | None]
    """Why the iteration gave no training signal (training/no_signal.py); None if at least one group gave one."""
    train_metrics: Mapped[dict[str, Json]]
    timing: Mapped[dict[str, Json]]
    sampled_step: Mapped[int | None]
    """The step of the policy that sampled the rollouts; None if there were none or an earlier version saved the row."""
    staleness: Mapped[int | None]
    """How many steps older that policy was than the one trained on the rollouts."""
    facts: Mapped[dict[str, Json] | None]
    """What diagnoses are made from (training/diagnosis/facts.py); None if an earlier version saved the row."""
    finished_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Evaluation(Base):
    """Held-out results of one checkpoint."""

    __tablename__ = "evaluation"

    run_id: Mapped[str] = run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    split: Mapped[str] = mapped_column(Text, primary_key=True)
    mode: Mapped[str] = mapped_column(Text, primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    scenarios: Mapped[int]
    success: Mapped[float]
    mean_reward: Mapped[float]
    malformed: Mapped[float]
    turns: Mapped[float]
    difference: Mapped[dict[str, Json] | None]
    """How far its success is from the baseline's (training/statistics/difference.py). None for the baseline, and if an
    earlier version saved the row."""


class Trajectory(Base):
    """The record of one rollout, from a run, an evaluation, or a question to a model."""

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
        Index("ix_trajectory_asked_as_seq", "asked_as", "seq", postgresql_where=text("asked_as IS NOT NULL")),
        Index("ix_trajectory_user_hash", "user_hash", postgresql_where=text("user_hash IS NOT NULL")),
        Index("ix_trajectory_release_id", "release_id", postgresql_where=text("release_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    """Order in which trajectories were saved, and in which lists return them."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    project: Mapped[str | None]
    """Set for questions to a model by name and for evaluations; other trajectories belong to their run's project."""
    asked_as: Mapped[str | None]
    """The promoted name that a question was sent to, as PROJECT/NAME."""
    user_hash: Mapped[str | None] = mapped_column(String(64))
    """HMAC-SHA-256 of the asking user's key under the service's secret; None if the request named no user."""
    release_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("release.id", ondelete="SET NULL"))
    """The release that was live when the question came; None without one."""
    arm: Mapped[str | None]
    """The arm that answered, stable or candidate; None without a release."""
    probability: Mapped[float | None]
    """Probability of that arm for this user; None without a release."""
    may_train: Mapped[bool] = mapped_column(default=False, server_default="false")
    """Whether the user consented to training on it."""
    evaluation_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("evaluation_job.id", ondelete="CASCADE"))
    slot: Mapped[str | None]
    """Position in an evaluation: numbers of model, scenario and sample, such as `0/12/1`."""
    copied_from: Mapped[str | None]
    """The rollout of an earlier evaluation that it is a copy of, with a verdict of its own; None for a new rollout."""
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
    """Task and reference answer."""
    messages: Mapped[list[Json]]
    """Messages in OpenAI's format, without token log-probabilities."""
    tokens: Mapped[list[Json]] = mapped_column(default=list, server_default="[]", deferred=True)
    """What the agent sampled in each turn: `message` (index into `messages`), `texts` and `logprobs` of the tokens."""
    tools: Mapped[list[Json]]
    additional_histories: Mapped[list[Json]] = mapped_column(server_default="[]")
    """Further conversations of an agent that owns its loop, each with messages and tools."""
    prompt_sha256: Mapped[str | None] = mapped_column(String(64))
    """The prompt that the rollout was made with; None for the environment's texts."""
    undelivered_parts: Mapped[int | None]
    """How many parts of the prompt were not in the first request to the model; None if no agent brought a prompt."""
    outcome: Mapped[dict[str, Json]]
    score: Mapped[float | None]
    score_explanation: Mapped[str | None]
    score_parts: Mapped[dict[str, Json]]
    reward: Mapped[float | None]
    reward_parts: Mapped[dict[str, Json]]
    advantage: Mapped[float | None]
    success: Mapped[bool | None]
    why_no_success: Mapped[str | None]
    """The environment's clause about a scored rollout that is not a success; None without one."""
    inclusion: Mapped[float | None]
    """Probability with which its scenario was rolled out in the iteration; None if an earlier version saved the row."""
    replaces: Mapped[str | None]
    """Scenario whose group its own replaces, because that one taught nothing; None for any other rollout."""
    error: Mapped[str | None]
    failure: Mapped[str | None]
    """Kind of the error, a `learnloop_service.training.types.FailureKind`; None without an error, or if an earlier
    version saved the row."""
    turns: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    seconds: Mapped[float]
    started_at: Mapped[datetime]


class Reflection(Base):
    """The state of a reflective environment after an iteration, and its showcase."""

    __tablename__ = "reflection"

    run_id: Mapped[str] = run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[dict[str, Json]]
    trajectory_id: Mapped[str]
    """The showcase's trajectory."""


class Journal(Base):
    """Finished parts of the current iteration (see training/journal.py); emptied when the iteration is saved."""

    __tablename__ = "journal"

    run_id: Mapped[str] = run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    epoch: Mapped[int]
    value: Mapped[bytes]
    """JSON text, compressed with zlib."""
    checksum: Mapped[int | None] = mapped_column(BigInteger)
    """CRC-32 of key and value; None if an earlier version wrote the row."""
    kept_at: Mapped[datetime] = mapped_column(server_default=func.now())


class RolloutRecord(Base):
    """A finished rollout of a saved iteration with its token ids and exact log-probabilities, moved from the journal.

    Value and checksum are those of the journal's entry.
    """

    __tablename__ = "rollout_record"

    run_id: Mapped[str] = run_id()
    iteration: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    """Name of the journal's entry (training/journal.py): `rollout/PURPOSE/N`, or one about served answers."""
    value: Mapped[bytes]
    checksum: Mapped[int | None] = mapped_column(BigInteger)


class Event(EventRow):
    """What happened to a run."""

    __tablename__ = "event"

    run_id: Mapped[str] = run_id()
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    iteration: Mapped[int | None]


class LedgerEntry(Base):
    """Usage of one phase of an iteration. `wasted` marks usage of work that was lost or gave no training signal."""

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


class Feedback(Base):
    """What a person did with an email, or an opinion on it or on an agent's session.

    Rows never change, so their order of arrival does not matter.
    """

    __tablename__ = "feedback"
    __table_args__ = (
        UniqueConstraint("project", "event_id"),
        CheckConstraint("num_nonnulls(trajectory_id, session_id, user_hash) = 1", name="subject"),
        Index("ix_feedback_trajectory_id", "trajectory_id"),
        Index("ix_feedback_against_id", "against_id"),
        Index("ix_feedback_session_id", "session_id"),
        Index("ix_feedback_against_session_id", "against_session_id"),
        Index("ix_feedback_user_hash", "user_hash", postgresql_where=text("user_hash IS NOT NULL")),
        Index("ix_feedback_withdraws", "project", "withdraws", postgresql_where=text("withdraws IS NOT NULL")),
        Index("ix_feedback_run_id_id", "run_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(26), primary_key=True)
    project: Mapped[str]
    """Project of the trajectory or session; empty if it has none."""
    event_id: Mapped[str]
    """The sender's id of the event. A second event with the same id in the project is the same event."""
    trajectory_id: Mapped[str | None] = mapped_column(Text, ForeignKey("trajectory.id", ondelete="CASCADE"))
    """The trajectory that it is about; for a preference, the preferred one. None if it is about something else."""
    against_id: Mapped[str | None] = mapped_column(Text, ForeignKey("trajectory.id", ondelete="CASCADE"))
    """The trajectory that was not preferred, if the event is a preference."""
    session_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("agent_session.id", ondelete="CASCADE"))
    """The session that it is about; for a preference, the preferred one."""
    against_session_id: Mapped[str | None] = mapped_column(
        String(26), ForeignKey("agent_session.id", ondelete="CASCADE")
    )
    """The session that was not preferred, if the event is a preference."""
    user_hash: Mapped[str | None] = mapped_column(String(64))
    """The user that it is about, for answers that are not stored; hashed as in `trajectory`."""
    asked_as: Mapped[str | None]
    """With `user_hash`, the promoted name that the user asked, as PROJECT/NAME."""
    withdraws: Mapped[str | None]
    """The sender's id of the event that a withdrawal cancels, which can arrive later than it."""
    outcome_name: Mapped[str | None]
    """Name of an outcome, such as `resolved`; None for other events."""
    value: Mapped[float | None]
    """Value of an outcome, in [0, 1]; None for other events."""
    run_id: Mapped[str | None] = mapped_column(String(26), ForeignKey("run.id", ondelete="CASCADE"))
    """The trajectory's run; None for a session, and for a question to a model by name."""
    type: Mapped[str]
    confidence: Mapped[float]
    """Confidence of a preference or thumb, in (0, 1]."""
    comment: Mapped[str | None]
    """Comment given with an opinion."""
    source: Mapped[str]
    """api, or simulator for synthetic events."""
    occurred_at: Mapped[datetime]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())
