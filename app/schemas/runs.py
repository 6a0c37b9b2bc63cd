"""Bodies of the responses about runs, their iterations, evaluations and checkpoints."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.schemas.base import ResponseModel, StartedOut
from learnloop_service.app.schemas.results import RunCost, ShowcaseEmail
from learnloop_service.app.schemas.trajectories import Mode, Split
from learnloop_service.app.statistics.verdict import VerdictState
from learnloop_service.environment.json_type import Json


class Accepted(ResponseModel):
    """The request was accepted. Poll the run to see when it has taken effect."""

    run_id: str
    """Id of the run."""
    status: RunStatus
    """Status of the run now."""
    results_path: str
    """Path of the run's result documents."""
    links: dict[str, str]
    """Paths of the run and of what belongs to it, by name."""


class RunWebhookCreated(ResponseModel):
    """A webhook endpoint of the new run."""

    id: str
    """Id of the endpoint."""
    url: str
    """Where the events are sent."""
    secret: str
    """Signs the messages (Standard Webhooks). Shown only once."""


class DefaultOut(ResponseModel):
    """A setting that the request did not give."""

    value: bool | int | float
    """The value that the run uses."""
    reason: str
    """Why it is that value."""


class ExpectedRollouts(ResponseModel):
    """Numbers of rollouts in a run."""

    baseline: int
    """Rollouts on held-out scenarios before training. With `evaluation.baseline_width` at most."""
    training: int
    """Rollouts in all training iterations, without replacements."""
    evaluations: int
    """Rollouts on held-out scenarios after the baseline."""
    replacements: int = 0
    """Further rollouts in groups that replace those that teach nothing, at most (`replace_groups`)."""


class ExpectedWork(ResponseModel):
    """The rollouts of a run, and the time and money that they take."""

    rollouts: ExpectedRollouts
    """Numbers of rollouts."""
    seconds: float | None
    """Estimate by the newest completed run with the same base model, environment and backend; null if there is none."""
    usd: float | None = None
    """Estimate in US dollars by the same run: its calls with a price and its machine's time; null if none is known."""
    disk_bytes: float | None = None
    """Bytes of disk that its checkpoints take at the same time, with its rollouts in the database; null for the tiny
    base and for bases whose files are elsewhere."""


class LearnLoopPlan(ResponseModel):
    """What a learn-loop would be and do."""

    warnings: list[str] = Field(default_factory=list)
    """Why the run may learn nothing or its judge may fail, as far as that can be foreseen."""
    defaults: dict[str, DefaultOut] = Field(default_factory=dict)
    """Settings that follow the base model and were not given, by their paths in the request (`evaluation.every`)."""
    expected: ExpectedWork
    """What the run will do, unless it ends earlier."""


class LearnLoopAccepted(Accepted, LearnLoopPlan):
    """The learn-loop was accepted and waits for a worker."""

    webhooks: list[RunWebhookCreated] = Field(default_factory=list)
    """The endpoints of the request, in the same order."""


class ModelOut(ResponseModel):
    """The model that a run trains."""

    project: str
    """Project that the model belongs to."""
    name: str
    """Name of the model within its project."""
    base_model: str
    """Base model, or checkpoint as `PROJECT/NAME@STEP`, from which the model was first trained."""


class RolloutFailures(ResponseModel):
    """Failures among the rollouts of the newest iteration that made some."""

    iteration: int
    """The iteration; 0 is the baseline."""
    failed: int
    """How many of its rollouts failed so far."""
    finished: int
    """How many have finished so far, those that failed included."""
    first: str
    """The line that names the error of the first one."""


class Progress(ResponseModel):
    """How far a run is."""

    iterations_done: int
    """Number of completed training iterations."""
    iterations_total: int
    """Number of training iterations that the run was asked for, those of its warm start included."""
    iteration: int | None
    """The current iteration; 0 is the baseline evaluation. Null unless the run is being worked on."""
    phase: str | None
    """The current phase of that iteration: rollout, judge, train, reflect or evaluate."""
    done: int | None
    """Units of work of the phase that are done, such as rollouts."""
    total: int | None
    """Units of work in the phase."""
    failures: RolloutFailures | None = None
    """Failed rollouts of the newest iteration that made some; null if none failed."""


class Rewards(ResponseModel):
    """Statistics over the rollouts that have a reward. All are null if none has one."""

    mean: float | None
    """Mean reward."""
    median: float | None
    """Median reward."""
    min: float | None
    """Lowest reward."""
    max: float | None
    """Highest reward."""
    count: int
    """Number of rollouts with a reward."""


class SupervisedFigures(ResponseModel):
    """What an iteration of a warm start learned. Losses are cross-entropies in nats per token of the assistant."""

    demonstrations: int
    """Number of demonstrations that it trained on."""
    left_out: int | None
    """Number of its demonstrations that were left out because they are longer than the model's context; null if there
    are none. The event `iteration.completed` names them."""
    tokens: int | None
    """Number of tokens that it learned: those of assistant messages."""
    loss: float | None
    """Mean over its batches, before each was learned."""
    held_out_loss_before: float | None
    """Loss on the demonstrations that are not trained on, before the iteration; null if there are none."""
    held_out_loss: float | None
    """The same after the iteration."""
    seconds: float | None
    """Seconds that the training took."""


class IterationFigures(ResponseModel):
    """One point of the learning curve."""

    iteration: int
    """Number of the iteration, from 1; 0 is the baseline evaluation of the untrained model."""
    step: int
    """The policy step that the backend reported after the iteration."""
    rewards: Rewards
    """Statistics of the rewards of the iteration's training rollouts. These and the shares leave out replacements
    (`replace_groups`), and weigh the others by the inverse of their `inclusion` (`scenario_sampling`)."""
    success: float | None
    """Share of the rollouts that did their task, from 0 to 1; null if it is not known of any."""
    malformed: float | None
    """Share of the rollouts that ended with a malformed tool call, from 0 to 1; null if there were none."""
    no_signal: Literal["malformed", "constant_reward", "equal_rewards", "judge_silent", "rollouts_failed"] | None = None
    """Why the iteration trained nothing; null if it did. `malformed`: every rollout ended with a malformed reply.
    `constant_reward`: all rewards are equal. `equal_rewards`: those of each group are. `judge_silent`: the judge scored
    too few rollouts. `rollouts_failed`: too few rollouts finished."""
    supervised: SupervisedFigures | None = None
    """What was learned from demonstrations, in the iterations of a warm start; null in all others."""
    lost_rollouts: dict[str, int] = Field(default_factory=dict)
    """Number of failed rollouts that were lost for reasons that are not the agent's, by reason: `agent_lost` (the
    process or server of an agent elsewhere), `backend_away`, `backend_error` and `model_not_found` (the model's
    server), or `environment`. The same run without these losses trains other weights."""


class IterationRewards(ResponseModel):
    """Counts of the rewards of an iteration's training rollouts."""

    iteration: int
    """Number of the iteration, from 1."""
    counts: list[int]
    """Number of rollouts in each bin, from the lowest rewards to the highest."""


class RewardHistograms(ResponseModel):
    """The rewards of a run's training rollouts, counted in equally wide bins that all iterations share."""

    low: float | None
    """Lowest reward of the run, where the first bin begins; null if there is none."""
    high: float | None
    """Highest reward of the run, where the last bin ends; null if there is none."""
    iterations: list[IterationRewards]
    """The iterations whose trajectories are kept, in order."""


class IterationOut(IterationFigures):
    """One iteration with all its figures."""

    best_step: int
    """Step of the best checkpoint so far."""
    failed_rollouts: int
    """Number of rollouts that failed, for example by a timeout."""
    skipped_groups: dict[str, int]
    """Number of groups that were not trained on, by reason: `no_signal` (all rewards equal) or `unscored` (fewer
    than two rewards)."""
    train_metrics: dict[str, float | None]
    """Metrics of the training step, as the backend reports them."""
    timing: dict[str, float]
    """Seconds that each phase took, by phase. Of rollouts that ran ahead and of their judging only what the iteration
    had to wait for; `ahead_s`: how long before the iteration they began."""
    sampled_step: int | None = None
    """Step of the policy that sampled every turn of the iteration's training rollouts; null if there were none."""
    staleness: int | None = None
    """Number of steps that the policy had taken since, when it was trained on them: at most `pipeline.max_staleness`;
    null if there were none."""
    finished_at: datetime
    """When the iteration was saved."""
    email: ShowcaseEmail | None = None
    """The sample email written after this iteration, in environments that write emails."""


class DifferenceOut(ResponseModel):
    """A later success minus an earlier one, as shares from -1 to 1, over the scenarios that both evaluations have."""

    scenarios: int
    """Number of scenarios."""
    changed: int
    """Number of scenarios whose success differs."""
    mean: float
    """Mean difference."""
    low: float
    """Lower end of the 95% interval, by the paired bootstrap over scenarios."""
    high: float
    """Upper end of the interval."""
    smallest: float | None
    """The smallest mean difference that would have been shown; null if there are too few scenarios for any."""


class RunEvaluationOut(ResponseModel):
    """Held-out evaluation of one checkpoint."""

    iteration: int
    """Iteration after which it was made; 0 is the baseline."""
    split: Split
    """`validation`, which picks the best checkpoint, or `test`, evaluated at the start and at the end only."""
    mode: Mode
    """How tokens were picked: `sampled` at random, or `greedy`, always the most likely one."""
    step: int
    """Step of the evaluated checkpoint."""
    scenarios: int
    """Number of scenarios."""
    success: float
    """Share of the rollouts that did their task, from 0 to 1."""
    mean_reward: float
    """Mean reward of the rollouts."""
    malformed: float
    """Share of the rollouts that ended with a malformed tool call, from 0 to 1."""
    turns: float
    """Mean number of turns per rollout."""
    difference: DifferenceOut | None = None
    """How far its success is from the baseline's on the same scenarios. Null for the baseline, and for evaluations that
    an earlier version saved."""


class BestCheckpoint(ResponseModel):
    """The best checkpoint by its success on the validation scenarios: the highest or, by the rule `newest`, the newest
    that cannot be told apart from the highest by the paired interval of the difference."""

    step: int
    """Step of the checkpoint."""
    success: float | None
    """Share of the sampled rollouts on the validation scenarios that did their task, from 0 to 1."""
    interval: list[float] | None = None
    """95% interval of `success` (Wilson's, over the scenarios). Null in lists, and if it was not evaluated."""


class ComparedCheckpoint(ResponseModel):
    """A checkpoint in a verdict."""

    iteration: int
    """Iteration after which it was evaluated; 0 is the baseline."""
    step: int
    """Step of the checkpoint."""
    success: float
    """Share of the rollouts that did their task, from 0 to 1."""


class ComparedEvaluations(ResponseModel):
    """What a verdict compares: the run's headline figure."""

    split: Split
    """Split of the scenarios: `validation`, or `test` if the run does not validate."""
    mode: Mode
    """How tokens were picked."""
    scenarios: int
    """Number of scenarios."""
    first: ComparedCheckpoint
    """The baseline."""
    latest: ComparedCheckpoint | None
    """The latest evaluation; null before one follows the baseline."""
    smallest_points: float | None
    """The smallest difference that would have been shown, in percentage points; null if it is not known, or if there
    are too few scenarios for any."""


class DemonstrationLosses(ResponseModel):
    """Losses of a run on demonstrations only, in nats per token."""

    first: float
    """Loss before training; if no demonstration is held out, that of the first iteration."""
    latest: float
    """Loss after the last iteration; if no demonstration is held out, while it trained."""
    held_out: bool
    """Whether these are losses on demonstrations that were held out."""


class VerdictOut(ResponseModel):
    """Whether the run learned: its first held-out evaluation compared with its latest one."""

    state: VerdictState
    """`learned` or `got_worse` only if the interval excludes 0 and at least 5 scenarios changed; else
    `no_change_shown`; `too_early` before there are two evaluations. A finished run on demonstrations only, without a
    second evaluation, has `demonstrations_learned` if its loss fell, else `demonstrations_not_learned`."""
    points: float | None
    """The latest success minus the first one, in percentage points, over the scenarios that both have."""
    interval: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    """Lower and upper end of the 95% interval of `points`, by the paired bootstrap over scenarios; null if it is not
    known."""
    on: ComparedEvaluations | None
    """What is compared; null before the baseline, and where losses are compared."""
    losses: DemonstrationLosses | None = None
    """The losses that are compared; null unless the state is one of demonstrations."""
    sentence: str = ""
    """The verdict in one short sentence, without a full stop. Empty in events of earlier versions."""
    details: str = ""
    """What `text` says besides: the interval, what was evaluated and when, the best checkpoint, causes."""
    text: str
    """Sentence and details as running text."""
    causes: list[str]
    """Diagnosed causes, by name."""


class Tokens(ResponseModel):
    """Tokens of the agent."""

    prompt: int
    """Number of prompt tokens."""
    completion: int
    """Number of generated tokens."""


class RunBrief(StartedOut):
    """A run, as listed."""

    run_id: str
    """Id of the run."""
    status: RunStatus
    """Status of the run."""
    environment: str
    """Name of the environment that the agent acts in."""
    judge: str
    """Name of the judge that scores the rollouts."""
    backend: str
    """Name of the backend that trains the model."""
    on_engine: bool
    """Whether the model is one of the service's engine."""
    model: ModelOut
    """The model that the run trains."""
    progress: Progress
    """How far the run is."""
    best_checkpoint: BestCheckpoint | None
    """The best checkpoint so far; null before the baseline evaluation."""
    rollouts: int
    """Number of rollouts so far, evaluation included."""
    tokens: Tokens
    """Tokens of the agent so far."""
    error: str | None
    """Why the run failed; null if it did not."""
    ended_early: str | None = None
    """Why a completed run has fewer iterations than it was asked for; null if it has all (`end_when_learned`,
    `stop_when`)."""
    diagnosis: str | None = None
    """Name of the cause why it does not learn, if one is named now: `GET /runs/{run_id}/diagnosis` has the evidence."""
    created_at: datetime
    """When the run was accepted."""
    started_at: datetime | None
    """When a worker first started it; null before."""
    finished_at: datetime | None
    """When it ended; null before."""
    name: str | None = None
    """What it is called: by its owner, or else by what its request sets; null if by its model's name."""
    tags: list[str] = Field(default_factory=list)
    """Its owner's tags."""
    notes: str = ""
    """Its owner's notes."""
    starred: bool = False
    """Whether its owner has starred it."""
    links: dict[str, str]
    """Paths of the run and of what belongs to it, by name."""


class SameSettingsOut(ResponseModel):
    """Figures of runs that differ only in their seed. A mean leaves out the runs without a value, and is null if none
    has one."""

    runs: int
    """Number of runs."""
    first: float | None
    """Mean success of their baselines, from 0 to 1."""
    means: dict[str, float | None]
    """Mean values by what runs can be sorted by, such as `gain`, in percentage points, and `tokens`."""
    cost_usd: float | None = None
    """What all of them have cost so far in US dollars."""
    gain_sd: float | None
    """Standard deviation of the gain between the runs, in percentage points; null if fewer than two have one."""
    gain_low: float | None
    """Smallest gain, in percentage points."""
    gain_high: float | None
    """Largest gain, in percentage points."""
    verdicts: dict[VerdictState, int]
    """Number of runs by verdict."""
    statuses: dict[RunStatus, int]
    """Number of runs by status."""
    starred: int = 0
    """Number of runs that are starred."""


class RunListed(RunBrief):
    """A run in the list of runs."""

    settings_hash: str
    """Hash of its settings: runs with the same hash differ at most in their seed and in the name of their model."""
    seed: int | None
    """Its seed; null if an earlier version stored none."""
    learning_rate: float | None
    """Its learning rate; null if an earlier version stored none."""
    same_settings: SameSettingsOut | None = None
    """Figures of all listed runs with its settings, of which this one is the newest. Null unless `fold` was requested
    and there are several."""
    verdict: VerdictOut
    """Whether the run learned."""
    judge_usd: float
    """Dollars for judge calls so far, as far as their price is known."""
    cost_usd: float | None = None
    """What the run has cost so far in US dollars, as `total_usd` of its `cost`."""
    settings: dict[str, str | float | bool] | None = None
    """Its settings by their paths, such as `model.base_model`: numbers, texts of at most 100 characters, and whether
    something is on. Null if the request did not ask."""
    curve: list[float] | None = None
    """Mean rewards of its iterations, oldest first, evenly thinned out to at most as many as `curve` asked for. Null if
    the request did not ask."""


class Queue(ResponseModel):
    """Position of a queued run."""

    position: int
    """Number of queued runs that start before it, if no run ends meanwhile: the projects take turns."""
    reason: str
    """Why the run is waiting."""


class Parent(ResponseModel):
    """The run and checkpoint that a run was forked from."""

    run_id: str
    """Id of the parent run."""
    step: int
    """Step of the checkpoint that the run started from."""


ForecastFigure = Literal["success", "minutes", "tokens", "usd"]
ForecastFigures = dict[ForecastFigure, tuple[float, float, float]]


class RunForecastOut(ResponseModel):
    """What a run comes to, by its own iterations. Each figure is what is expected and the ends of its 90% interval:
    `success` of the sampled rollouts on validation scenarios, and `minutes`, `tokens` and `usd` from the newest saved
    iteration until then. What is not known well enough is left out."""

    end: ForecastFigures = Field(default_factory=dict)
    """At its end."""
    twice: ForecastFigures = Field(default_factory=dict)
    """With twice as many iterations."""
    text: list[str]
    """The same in sentences, or which rule of `stop_when` ended it, and what more would have cost."""


class RunOut(RunBrief):
    """A run with its figures: up to 200 of the latest iterations, the baseline evaluation and the latest ones."""

    verdict: VerdictOut
    """Whether the run learned. It does not depend on the run's status."""
    pruned: dict[Literal["trajectories", "rollouts", "events", "ledger"], datetime] = Field(default_factory=dict)
    """What was deleted because of its age, with the time: `rollouts` are token ids and log-probabilities; of the ledger
    only its sums remain. Figures are never deleted."""
    warnings: list[str] = Field(default_factory=list)
    """Why the run learns nothing or may learn nothing: what was foreseen, and iterations without a training signal."""
    defaults: dict[str, DefaultOut] = Field(default_factory=dict)
    """Settings that follow the base model and that the request did not give, with their reasons, by their paths in the
    request. Empty for runs of earlier versions."""
    queue: Queue | None = None
    """Position in the queue; set while the run is queued."""
    wait_reason: str | None = None
    """Why a paused run is paused, or what another one is waiting for (the engine, a full disk, a budget)."""
    shortage: dict[str, Json] | None = None
    """The budget that paused it, or with `budget` its project's or key's that keeps it in the queue `until` then."""
    parent: Parent | None = None
    """What the run was forked from, if it was forked and its parent still exists."""
    attempts: int = 0
    """How many times workers have claimed the run since it last made progress."""
    reproducible: bool | None = None
    """Whether sampling and training with the same seed give the same weights, bit for bit, on the same machine. Null
    until the run has started. A judge that is a language model may still score differently."""
    reproducible_reason: str | None = None
    """Why it is or is not reproducible."""
    cancel_requested: bool
    """Whether someone has asked to cancel the run."""
    request: dict[str, Json]
    """The request with all defaults filled in."""
    iterations: list[IterationFigures]
    """The latest iterations, oldest first, up to 200. `GET /runs/{run_id}/iterations` lists all."""
    evaluations: list[RunEvaluationOut]
    """The held-out evaluations: those of the baseline, of the best checkpoint, and of the newest 200 iterations that
    were evaluated."""
    summary: dict[str, Json] | None
    """Held-out figures before and after, once the run has completed."""
    webhooks: dict[str, int]
    """Number of webhook deliveries by state."""
    forecast: RunForecastOut | None = None
    """What it will come to. Null before the baseline, and of ended runs, unless a rule of `stop_when` ended them."""
    cost: RunCost = RunCost()
    """What the run has used so far."""
    last_event: int = 0
    """`seq` of its newest event: a stream after it brings what happens from now on."""
    results_path: str = ""
    """Path of the run's result documents."""
    results_error: str | None = None
    """Why the results folder on disk is incomplete. Downloads are made from the database and always complete."""


class CheckpointOut(ResponseModel):
    """A checkpoint of a run."""

    step: int
    """Step of the checkpoint."""
    iteration: int
    """Iteration that made it; 0 is the model that the run started from."""
    model: str | None
    """The backend's name for it: `PROJECT/NAME@STEP`, or a W&B artifact."""
    success: float | None
    """Share of the sampled rollouts on the validation scenarios that did their task, from 0 to 1; null if it was not
    evaluated."""
    is_best: bool
    """Whether it is the best checkpoint of the run."""
    created_at: datetime
    """When it was made."""
    deleted_at: datetime | None
    """When its weights were deleted; null if they are there."""
