"""Types of the learn loop: the configuration of a run, and the results of its iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from learnloop_service.environment.base import Json, Outcome, Scenario, Split
from learnloop_service.judges.base import JudgeCall, Score
from learnloop_service.training.best_checkpoint import BestCheckpoint
from learnloop_service.training.collapse import OnCollapse, RolledOut
from learnloop_service.training.group_facts import GroupFacts
from learnloop_service.training.phases import Phase

if TYPE_CHECKING:  # importing art takes seconds
    from art import Trajectory


HELD_OUT_SEED = 0
"""Default seed of held-out scenarios, so that runs with different seeds are evaluated on the same ones."""


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Held-out evaluation before the first iteration, after every `every`-th one and after the last.

    Validation selects the best checkpoint (training/best_checkpoint.py), from `scenarios` scenarios with `samples`
    sampled rollouts and one greedy rollout each. The test split is used twice, for the base model and for the best
    checkpoint, in the same way with `test_scenarios` scenarios. Without validation scenarios, the newest checkpoint
    counts as the best. A split with fewer scenarios has each of them evaluated once.
    """

    every: int = 4
    scenarios: int = 24
    samples: int = 2
    test_scenarios: int = 64
    baseline_width: float | None = None
    """The baseline of a split ends after a batch of scenarios when the 95% intervals of its success, sampled and
    greedy, are narrower than this. None or 0: it has all scenarios."""
    best: Literal["newest", "highest"] | None = None
    """Which checkpoint is the best (training/best_checkpoint.py). None: the newest."""
    seed: int | None = None
    """Seed of the held-out scenarios and of their rollouts. None in runs of earlier versions, which drew them by the
    run's seed."""

    @property
    def is_by_scenario(self) -> bool:
        """Whether figures are means over scenarios. Those of earlier versions are means over rollouts."""
        return self.seed is not None


@dataclass(frozen=True, slots=True)
class WarmStartConfig:
    """Supervised iterations on demonstrations, before the iterations of reinforcement learning."""

    iterations: int
    """Number of iterations, from `learnloop_service.training.loop.warm_start.iterations_of`."""
    epochs: int = 2
    batch_size: int = 8
    """Number of demonstrations per optimizer step."""
    learning_rate: float = 5e-4
    """Peak learning rate, reached after a tenth of all optimizer steps. It then decays linearly towards zero."""
    held_out: float = 0.1
    """Share of the demonstrations that are not trained on, but used to measure the loss."""
    demonstrations_per_iteration: int | None = None
    """None for one epoch per iteration."""


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """How far rollouts can run ahead of training (training/loop/rollout_schedule.py)."""

    max_staleness: int = 0
    """Maximum number of steps between the policy that samples rollouts and the one that is trained on them, and the
    number of iterations that rollouts begin ahead. With 0, each iteration rolls out with the newest policy and then
    trains."""


@dataclass(frozen=True, slots=True)
class StopWhen:
    """Rules by which a run ends before all its iterations (training/stopping.py)."""

    target: float | None = None
    plateau: bool = False
    no_gain: Mapping[str, float | None] | None = None
    """Most that a point of held-out success may cost: `usd_per_point`, `minutes_per_point` and `tokens_per_point`."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that determines what a run does. On the embedded engine, equal configs give equal results."""

    iterations: int = 14
    groups_per_iteration: int = 8
    rollouts_per_group: int = 8
    max_turns: int | None = None
    """None for the environment's default."""
    learning_rate: float = 7e-4
    """Suits the included tiny base model; models with billions of parameters need about 1e-5."""
    warmup_iterations: int = 3
    """Number of iterations in which the learning rate rises to its full value."""
    seed: int = 0
    concurrency: int = 64
    """Maximum number of rollouts in flight."""
    temperature: float = 1.0
    max_completion_tokens: int = 256
    rollout_timeout_s: float = 300.0
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    train_options: Mapping[str, Json] = field(default_factory=dict)
    """Options of a GRPO step, such as loss, epsilon or kl_penalty_coef (training/backends/train_options.py)."""
    warm_start: WarmStartConfig | None = None
    served_iterations: int = 0
    """Number of iterations that learn from served answers, in a run that has no warm start."""
    first_scenario: int = 0
    """Number of the first training scenario that is rolled out; those before it were demonstrated."""
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    on_collapse: OnCollapse = "continue"
    """What is done when a step broke the policy. `continue` in runs of earlier versions."""
    replace_groups: bool = False
    """Whether groups that teach nothing are replaced (training/inclusion.py)."""
    scenario_sampling: Literal["passes", "difficulty"] = "passes"
    """How scenarios are drawn: in shuffled passes, or half of them by what they teach (training/difficulty.py)."""
    end_when_learned: bool = False
    """Whether the run ends after the iteration that shows that little is left to learn (training/loop/)."""
    stop_when: StopWhen | None = None

    @property
    def held_out_seed(self) -> int:
        """Seed of the held-out scenarios and of their rollouts."""
        return self.seed if self.evaluation.seed is None else self.evaluation.seed

    @property
    def supervised_iterations(self) -> int:
        """Number of iterations that learn from a record, before the first one with rollouts."""
        return self.warm_start.iterations if self.warm_start else self.served_iterations

    @property
    def all_iterations(self) -> int:
        """Number of iterations after the baseline."""
        return self.supervised_iterations + self.iterations


class FailureKind(StrEnum):
    """Why a rollout failed."""

    TIMEOUT = "timeout"
    BACKEND_AWAY = "backend_away"
    """The model's server, or the process that samples for it, could not be reached."""
    MODEL_NOT_FOUND = "model_not_found"
    BACKEND_ERROR = "backend_error"
    """The model's server answered with an error of its own (5xx)."""
    ENVIRONMENT = "environment"
    """Something that the environment needs, such as a server, failed."""
    AGENT = "agent"
    """An agent that owns its loop raised an error, or did nothing that can be judged."""
    AGENT_LOST = "agent_lost"
    """The process or server of an agent elsewhere was lost, so that the agent could report nothing."""
    OTHER = "other"
    """Any other reason, or none was recorded."""

    @property
    def is_lost(self) -> bool:
        """Whether the rollout was lost for a reason that is not the agent's. A repetition of the run need not lose it,
        and then trains other weights."""
        return self in _LOST


_LOST = frozenset(
    {
        FailureKind.BACKEND_AWAY,
        FailureKind.MODEL_NOT_FOUND,
        FailureKind.BACKEND_ERROR,
        FailureKind.ENVIRONMENT,
        FailureKind.AGENT_LOST,
    }
)


@dataclass(frozen=True, slots=True)
class RolloutFailure:
    """Why a rollout failed: a kind for code, and a message for people."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one scenario. If it failed, `failure` is set and the trajectory can be incomplete."""

    id: str
    scenario: Scenario
    trajectory: "Trajectory"
    outcome: Outcome
    failure: RolloutFailure | None = None
    started_at: float = 0.0
    """Unix time in seconds."""
    seconds: float = 0.0

    @property
    def error(self) -> str | None:
        """Message of the failure, if any."""
        return None if self.failure is None else self.failure.message


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with its verdict. `reward` is None if the judge gave no score or the rollout failed."""

    rollout: Rollout
    score: Score
    reward: float | None
    reward_parts: Mapping[str, float]
    success: bool
    advantage: float | None = None
    why_no_success: str | None = None
    """The environment's clause about a scored rollout that is not a success, if it has one."""
    inclusion: float = 1.0
    """Probability in (0, 1] with which its scenario was rolled out in the iteration."""
    replaces: str | None = None
    """Id of the scenario whose group its own replaces, because that one taught nothing in the iteration whose policy
    sampled it; None if the schedule drew it."""


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one scenario in one iteration. `skipped` is the reason if they were not trained on."""

    scenario: Scenario
    rollouts: tuple[ScoredRollout, ...]
    skipped: Literal["no_signal", "unscored"] | None = None
    judge_calls: tuple[JudgeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardSummary:
    """Summary of the rewards; None for each figure if no rollout has a reward."""

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
    """Share of rollouts that ended with a malformed tool call."""
    turns: float
    """Mean number of turns."""
    rollouts: tuple[ScoredRollout, ...] = ()
    judge_calls: tuple[JudgeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class IterationReflection:
    """The state of a reflective environment after an iteration, and its showcase: one greedy rollout with the
    result."""

    state: Mapping[str, Json]
    showcase: ScoredRollout
    judge_calls: tuple[JudgeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the rollouts that begin after an iteration depend on."""

    step: int
    """The policy's step."""
    environment_state: Mapping[str, Json] | None = None
    """State of a reflective environment."""
    taught_nothing: Sequence[str] = ()
    """Scenarios of its groups that can be replaced (training/inclusion.py)."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where to resume: `iteration` is the next one, and the other fields are the state after the previous one."""

    iteration: int
    snapshot: Snapshot
    best: BestCheckpoint
    earlier: Mapping[int, Snapshot] = field(default_factory=dict)
    """Snapshots after earlier iterations, by number, for rollouts that ran ahead."""
    groups: Mapping[int, Sequence[GroupFacts]] = field(default_factory=dict)
    """The groups of the saved iterations, with replacements."""
    rolled_out: Sequence[RolledOut] = ()
    """How the rollouts of the earlier iterations ended, in order."""


@dataclass(frozen=True, slots=True)
class FailedRollouts:
    """How many of the rollouts that an iteration has finished so far failed, and why the first one did."""

    iteration: int
    failed: int
    finished: int
    first: str | None
    """One line about the first failure; None if there is none."""


@dataclass(frozen=True, slots=True)
class IterationProgress:
    """Progress of the current iteration: `done` of `total` rollouts or steps of a phase."""

    iteration: int
    phase: Phase
    done: int
    total: int
    failures: FailedRollouts | None = None
    """Failures among the iteration's rollouts; None if the phase makes none."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of an iteration by phase, and the tokens processed. If rollouts ran ahead, `rollout_s` and `judge_s`
    contain only the time that the iteration waited for them."""

    rollout_s: float = 0.0
    judge_s: float = 0.0
    train_s: float = 0.0
    reflect_s: float = 0.0
    evaluate_s: float = 0.0
    total_s: float = 0.0
    ahead_s: float = 0.0
    """How long before the iteration its rollouts began."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class IterationResult:
    """The result of one iteration. Iteration 0 is the baseline, which is evaluated but not trained."""

    iteration: int
    step: int
    """The policy's step after this iteration."""
    model: str
    """The backend's name for the policy at that step: `project/name@step`, or a W&B artifact."""
    groups: tuple[Group, ...]
    rewards: RewardSummary
    success: float | None
    malformed: float | None
    failed_rollouts: int
    skipped_groups: Mapping[str, int]
    train_metrics: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]
    best_step: int
    """The best checkpoint so far, by its validation success, which `/ask` uses (training/best_checkpoint.py)."""
    timing: Timing
    reflection: IterationReflection | None = None
    """None unless the environment is reflective."""
    sampled_step: int | None = None
    """Step of the policy that sampled every turn of the iteration's rollouts; None without rollouts."""
    staleness: int | None = None
    """Number of steps that the policy took between sampling the rollouts and training on them; None without
    rollouts."""
    lost_rollouts: Mapping[str, int] = field(default_factory=dict)
    """Number of failed rollouts that were lost for reasons that are not the agent's, by `FailureKind`."""
    left_out: tuple[str, ...] = ()
    """Names of demonstrations that were left out because they are longer than the model's context. The baseline has all
    of the run, as far as they are known then."""
