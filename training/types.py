"""The nouns of a learn loop: the configuration of a run, and what each of its iterations gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from environment.base import Json, Outcome, Scenario, Split
from judges.base import JudgeCall, Score
from training.phases import Phase

if TYPE_CHECKING:  # importing art takes seconds
    from art import Trajectory


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Held-out evaluation, before the first iteration, after every `every`-th and after the last.

    Validation picks the best checkpoint: `scenarios` scenarios, `samples` sampled rollouts and a greedy one each.
    The split `test` is read twice, for the base and for the best checkpoint: `test_scenarios`, likewise. With no
    validation scenarios the newest checkpoint counts as the best.
    """

    every: int = 4
    scenarios: int = 24
    samples: int = 2
    test_scenarios: int = 64


@dataclass(frozen=True, slots=True)
class WarmStartConfig:
    """Supervised iterations on demonstrations, which come before those of reinforcement learning."""

    iterations: int
    """As many as `training.warm_start.iterations_of` says."""
    epochs: int = 2
    batch_size: int = 8
    """Demonstrations in one optimizer step."""
    learning_rate: float = 5e-4
    """Reached after a tenth of all optimizer steps; from there it falls to zero."""
    held_out: float = 0.1
    """Share of the demonstrations that are not trained on: their loss is measured."""
    demonstrations_per_iteration: int | None = None
    """None: an iteration is an epoch."""


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """How far rollouts may run ahead of training (training/rollout_schedule.py)."""

    max_staleness: int = 0
    """Rollouts are sampled from a policy at most so many steps older than the one that is trained on them, and begin so
    many iterations ahead. 0: each iteration rolls out with the newest policy, then trains."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that decides what a run does. Two equal configs on the embedded engine end alike."""

    iterations: int = 14
    groups_per_iteration: int = 8
    rollouts_per_group: int = 8
    max_turns: int | None = None
    """None takes the environment's default."""
    learning_rate: float = 7e-4
    """Right for the shipped tiny base; a model of billions of parameters wants about 1e-5."""
    warmup_iterations: int = 3
    """The learning rate rises to its value over this many iterations."""
    seed: int = 0
    concurrency: int = 64
    """Rollouts that run at the same time."""
    temperature: float = 1.0
    max_completion_tokens: int = 256
    rollout_timeout_s: float = 300.0
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    train_options: Mapping[str, Json] = field(default_factory=dict)
    """Options of a GRPO step (loss, epsilon, kl_penalty_coef, ...): see training/backends/train_options.py."""
    warm_start: WarmStartConfig | None = None
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)

    @property
    def supervised_iterations(self) -> int:
        """How many iterations learn from demonstrations, before the first one that rolls out."""
        return self.warm_start.iterations if self.warm_start else 0

    @property
    def all_iterations(self) -> int:
        """How many there are after the baseline."""
        return self.supervised_iterations + self.iterations


class FailureKind(StrEnum):
    """Why a rollout failed."""

    TIMEOUT = "timeout"
    BACKEND_AWAY = "backend_away"
    """No connection to the model's server."""
    MODEL_NOT_FOUND = "model_not_found"
    AGENT = "agent"
    """The agent that owns its loop raised, or did nothing that could be judged."""
    OTHER = "other"
    """Anything else, or not recorded."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout failed, for code and for people."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one scenario. A failed one has a `failure` and whatever its trajectory holds."""

    id: str
    scenario: Scenario
    trajectory: "Trajectory"
    outcome: Outcome
    failure: Failure | None = None
    started_at: float = 0.0
    """Unix time, seconds."""
    seconds: float = 0.0

    @property
    def error(self) -> str | None:
        """The failure's message."""
        return None if self.failure is None else self.failure.message


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with its verdict. `reward` is None where the judge had none or the rollout failed."""

    rollout: Rollout
    score: Score
    reward: float | None
    reward_parts: Mapping[str, float]
    success: bool
    advantage: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one scenario in one iteration. `skipped` says why it taught nothing."""

    scenario: Scenario
    rollouts: tuple[ScoredRollout, ...]
    skipped: Literal["no_signal", "unscored"] | None = None
    judge_calls: tuple[JudgeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardSummary:
    """Of the rollouts that have a reward; None where there was none."""

    mean: float | None
    median: float | None
    min: float | None
    max: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out figures of one checkpoint. Rates are in [0, 1]."""

    split: Split
    mode: Literal["sampled", "greedy"]
    step: int
    scenarios: int
    success: float
    mean_reward: float
    malformed: float
    """Share of rollouts that ended in a malformed call."""
    turns: float
    """Mean number of turns."""
    rollouts: tuple[ScoredRollout, ...] = ()
    judge_calls: tuple[JudgeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Reflection:
    """What a reflective environment took from an iteration, and its showcase: one greedy rollout after it."""

    state: Mapping[str, Json]
    showcase: ScoredRollout
    judge_calls: tuple[JudgeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What rollouts can be made with after an iteration."""

    step: int
    """The policy's."""
    environment_state: Mapping[str, Json] | None = None
    """Of a reflective environment."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where to resume: `iteration` is the next one; the rest is as it was after the one before."""

    iteration: int
    step: int
    best_step: int
    best_success: float
    best_reward: float
    environment_state: Mapping[str, Json] | None
    """Of a reflective environment."""
    earlier: Mapping[int, Snapshot] = field(default_factory=dict)
    """After iterations before that one, by number: as far back as rollouts are sampled that run ahead."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the current iteration is: `done` of `total` rollouts or steps of a phase."""

    iteration: int
    phase: Phase
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of an iteration by phase, and what was processed in them. Of rollouts that ran ahead, and of their
    judging, only what the iteration had to wait for is in `rollout_s` and `judge_s`."""

    rollout_s: float = 0.0
    judge_s: float = 0.0
    train_s: float = 0.0
    reflect_s: float = 0.0
    evaluate_s: float = 0.0
    total_s: float = 0.0
    ahead_s: float = 0.0
    """So long before the iteration its rollouts began."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class IterationResult:
    """What one iteration did. Iteration 0 is the baseline: evaluated, not trained."""

    iteration: int
    step: int
    """The policy's step after this iteration."""
    model: str
    """What the backend calls the policy at that step: `project/name@step`, or an artifact of W&B."""
    groups: tuple[Group, ...]
    rewards: RewardSummary
    success: float | None
    malformed: float | None
    failed_rollouts: int
    skipped_groups: Mapping[str, int]
    train_metrics: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]
    best_step: int
    """The step with the best validation success so far: the one that `/ask` uses."""
    timing: Timing
    reflection: Reflection | None = None
    """None unless the environment is reflective."""
    sampled_step: int | None = None
    """The policy's step that sampled every turn of the iteration's rollouts; None if it made none."""
    staleness: int | None = None
    """How many steps the policy had taken since when it was trained on them."""
