"""Bodies of the responses about runs, their iterations, evaluations and checkpoints."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from app.domain.run_state import RunStatus
from app.schemas.base import Json, ResponseModel
from app.schemas.results import RunCost, ShowcaseEmail
from app.schemas.trajectories import Mode, Split


class Accepted(ResponseModel):
    """The request was accepted. Poll the run to see when it has taken effect."""

    run_id: str
    status: RunStatus
    results_path: str
    """Path of the run's result documents."""
    links: dict[str, str]


class RunWebhookCreated(ResponseModel):
    """A webhook endpoint of the new run."""

    id: str
    url: str
    secret: str
    """Signs the messages. Shown only once."""


class LearnLoopAccepted(Accepted):
    """The learn-loop was accepted and waits for a worker."""

    webhooks: list[RunWebhookCreated] = Field(default_factory=list)
    """The endpoints of the request, in the same order."""
    warnings: list[str] = Field(default_factory=list)
    """Why the run may learn nothing, as far as that can be foreseen."""


class ModelOut(ResponseModel):
    """The model that a run trains."""

    project: str
    name: str
    base_model: str


class Progress(ResponseModel):
    """How far a run is."""

    iterations_done: int
    iterations_total: int
    iteration: int | None
    """The current iteration; 0 is the baseline evaluation."""
    phase: str | None
    """The current phase of that iteration."""
    done: int | None
    """Units of work of the phase that are done."""
    total: int | None
    """Units of work in the phase."""


class Rewards(ResponseModel):
    """Statistics over the rollouts that have a reward."""

    mean: float | None
    median: float | None
    min: float | None
    max: float | None
    count: int


class IterationFigures(ResponseModel):
    """One point of the learning curve."""

    iteration: int
    step: int
    """The policy step that the backend reported after the iteration."""
    rewards: Rewards
    success: float | None
    """Share of the rollouts that succeeded."""
    malformed: float | None
    """Share of the rollouts that ended with a malformed tool call."""
    no_signal: Literal["malformed", "constant_reward", "equal_rewards", "judge_silent", "rollouts_failed"] | None = None
    """Why the iteration trained nothing; null if it did. `malformed`: every rollout ended with a malformed reply.
    `constant_reward`: all rewards are equal. `equal_rewards`: those of each group are. `judge_silent`: the judge scored
    too few rollouts. `rollouts_failed`: too few rollouts finished."""


class IterationOut(IterationFigures):
    """One iteration with all its figures."""

    best_step: int
    """Step of the best checkpoint so far."""
    failed_rollouts: int
    skipped_groups: dict[str, int]
    """Groups that were not trained on, counted by reason."""
    train_metrics: dict[str, float | None]
    timing: dict[str, float]
    """Seconds per phase."""
    finished_at: datetime
    email: ShowcaseEmail | None = None
    """The sample email written after this iteration, in environments that write emails."""


class EvaluationOut(ResponseModel):
    """Held-out evaluation of one checkpoint."""

    iteration: int
    split: Split
    mode: Mode
    step: int
    scenarios: int
    success: float
    """Share of the rollouts that succeeded."""
    mean_reward: float
    malformed: float
    """Share of the rollouts that ended with a malformed tool call."""
    turns: float
    """Mean number of turns per rollout."""


class BestCheckpoint(ResponseModel):
    """The checkpoint with the highest success on the validation scenarios."""

    step: int
    success: float | None
    """Success of sampled rollouts on the validation scenarios."""


class Tokens(ResponseModel):
    """Tokens of the agent."""

    prompt: int
    completion: int


class RunBrief(ResponseModel):
    """A run, as listed."""

    run_id: str
    status: RunStatus
    environment: str
    judge: str
    backend: str
    model: ModelOut
    progress: Progress
    best_checkpoint: BestCheckpoint | None
    rollouts: int
    """Rollouts so far, evaluation included."""
    tokens: Tokens
    error: str | None
    """Why the run failed."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    links: dict[str, str]


class Queue(ResponseModel):
    """Position of a queued run."""

    position: int
    """Number of older queued runs."""
    reason: str
    """Why the run is waiting."""


class Parent(ResponseModel):
    """The run and checkpoint that a run was forked from."""

    run_id: str
    step: int


class RunOut(RunBrief):
    """A run with its figures: up to 200 of the latest iterations, the baseline evaluation and the latest ones."""

    warnings: list[str] = Field(default_factory=list)
    """Why the run learns nothing or may learn nothing: what was foreseen, and iterations without a training signal."""
    queue: Queue | None = None
    """Set while the run is queued."""
    wait_reason: str | None = None
    """Why a paused run is paused, or what a running one is waiting for (the engine, a full disk)."""
    parent: Parent | None = None
    """Set if the run was forked and its parent still exists."""
    attempts: int = 0
    """How many times workers have claimed the run since it last made progress."""
    reproducible: bool | None = None
    """Whether sampling and training with the same seed give the same weights, bit for bit, on the same machine. Null
    until the run has started. A judge that is a language model may still score differently."""
    reproducible_reason: str | None = None
    """Why it is or is not reproducible."""
    cancel_requested: bool
    request: dict[str, Json]
    """The request with all defaults filled in."""
    iterations: list[IterationFigures]
    evaluations: list[EvaluationOut]
    summary: dict[str, Json] | None
    """Held-out figures before and after, once the run has completed."""
    webhooks: dict[str, int]
    """Number of webhook deliveries by state."""
    cost: RunCost = RunCost()
    results_path: str = ""
    """Path of the run's result documents."""
    results_error: str | None = None
    """Why the results folder on disk is incomplete. Downloads are made from the database and always complete."""


class CheckpointOut(ResponseModel):
    """A checkpoint of a run."""

    step: int
    iteration: int
    model: str | None
    """The backend's name for it: `PROJECT/NAME@STEP`, or a W&B artifact."""
    success: float | None
    """Success of sampled rollouts on the validation scenarios."""
    is_best: bool
    created_at: datetime
    deleted_at: datetime | None
