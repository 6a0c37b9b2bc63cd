"""Bodies of the requests that start, resume and fork runs. Unknown fields are refused; every size is bounded."""

import re
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.names import DATASET_VERSION_PATTERN
from learnloop_service.app.schemas.base import Name, RequestBody, RequestPart
from learnloop_service.app.schemas.examples import examples_with_graph
from learnloop_service.app.schemas.train_options import TrainOptionsChoice
from learnloop_service.environment.json_type import Json
from learnloop_service.training.collapse import OnCollapse
from learnloop_service.training.tuning import Tuning
from learnloop_service.training.types import HELD_OUT_SEED, RunConfig, WarmStartConfig

_DEFAULTS = RunConfig()
_WARM_START = WarmStartConfig(iterations=1)


def _one_line(name: str) -> str:
    if name != name.strip() or len(name.splitlines()) != 1:
        raise ValueError("A name is one line without spaces at its ends.")
    return name


RunName = Annotated[str, Field(max_length=100), AfterValidator(_one_line)]


class EnvironmentChoice(RequestPart):
    """The environment that the agent acts in: its task, tools and reward."""

    name: Name = "email_search"
    """Name of the environment, one of `GET /environments`."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this environment, such as `{"inbox": "mine"}` for `email_search`. Empty: its synthetic tasks."""

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, value: object) -> object:
        """Take the name alone for the environment without settings."""
        return {"name": value} if isinstance(value, str) else value


class AgentChoice(RequestPart):
    """An agent that owns its loop: it decides what the model is asked, in place of the built-in loop."""

    name: Name
    """Name of the agent, one of `GET /agents`."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this agent. Empty: its defaults."""


class JudgeChoice(RequestPart):
    """The judge that scores the rollouts."""

    name: Name | None = None
    """Name of the judge, one of `GET /judges`. Default: the environment's own judge."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this judge, such as `{"passes": 4}` for `ruler`. Empty: its defaults."""


class WeightedJudge(RequestPart):
    """One of several judges whose scores are averaged."""

    name: Name
    """Name of the judge, one of `GET /judges`."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this judge. Empty: its defaults."""
    weight: float = Field(gt=0, le=1_000)
    """Weight of this judge's score in the mean, relative to the weights of the others; they need not add up to 1."""


_ONE, _SEVERAL = "one judge", "several judges"
Judges = Annotated[
    Annotated[JudgeChoice, Tag(_ONE)]
    | Annotated[list[WeightedJudge], Field(min_length=2, max_length=8), Tag(_SEVERAL)],
    Discriminator(lambda value: _SEVERAL if isinstance(value, list) else _ONE),
]

GraphSource = Annotated[
    Json,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "object"}},
                {
                    "type": "object",
                    "properties": {
                        "sha256": {"type": "string", "description": "Hash of a graph stored by `POST /graphs`."}
                    },
                    "required": ["sha256"],
                },
                {"type": "null"},
            ]
        }
    ),
]
"""Nodes, or the `{"sha256"}` of a stored graph. The environment validates it: only it knows what a node is."""


class TuningChoice(RequestPart):
    """Which part of the model is trained."""

    mode: Literal["lora", "full"]
    """`lora`: a low-rank adapter over the unchanged base model. `full`: the whole model."""
    rank: int | None = Field(default=None, ge=1, le=256)
    """Rank of the adapter. Default: 8."""
    alpha: int | None = Field(default=None, ge=1, le=1_024)
    """The adapter's output is scaled by alpha / rank. Default: 16."""
    target_modules: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.]{0,199}$")]] = Field(
        default_factory=list, max_length=64
    )
    """Names of the linear layers to adapt, such as `q_proj`. Empty: all except the output head."""

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        if self.mode == "full" and (self.rank or self.alpha or self.target_modules):
            raise ValueError("rank, alpha and target_modules describe an adapter: leave them out, or set mode to lora")
        return self

    def tuning(self) -> Tuning:
        """Return the tuning with its defaults filled in."""
        usual = Tuning()
        return Tuning(self.mode, self.rank or usual.rank, self.alpha or usual.alpha, tuple(self.target_modules))


class ModelChoice(RequestPart):
    """The model to train. If the project already has a model of this name, training continues from it."""

    name: Name | None = None
    """Name of the model within its project. Default: set by the service (ART_MODEL_NAME), else made from
    the run id."""
    project: Name | None = None
    """Project that the model belongs to. Default: the project of the API key, else that of the service."""
    base_model: str | None = Field(default=None, min_length=1, max_length=300)
    """Where training starts: a base model such as `learnloop/tiny`, or `PROJECT/NAME@STEP` for a checkpoint of the same
    project. Default: set by the service (ART_BASE_MODEL)."""
    tuning: TuningChoice | None = None
    """Which part of the model is trained. Default: that of the existing model or the checkpoint; of a new model, the
    whole below a billion parameters, and a LoRA of rank 8 above. Only backends with `takes_tuning` (`GET /backends`)
    take it."""
    enable_thinking: bool | None = None
    """Whether the model thinks before it answers, if its chat template has a switch of that name. The model keeps it,
    also for `POST /ask`. Default: that of the existing model or of the template. Only backends with `takes_tuning`
    take it."""


class SourceChoice(RequestPart):
    """Where the scenarios of an agent come from, if they are not written for it."""

    sessions: dict[str, Json]
    """Sessions outside of runs that have ended, and of them only those that fit: `model` (the name that they were
    opened with), `since` (a time), `rewarded` (true or false), `reward_below` (a number), `feedback` (`any`, `none`,
    `positive` or `negative`, as `POST /feedback` took it), `limit` (the newest, 1,000 by default). Empty: all.

    With `train_on: answers` the run learns from the answers themselves, and starts a new model from the checkpoint that
    `model`, a promoted name, has. `outcome` says what became of an answer (as in a release, without an opinion 0),
    `window_hours` when that is frozen (168), and `per_user` how many sessions of a user count at most (3); `since` and
    `limit` (10,000) as above. Held-out tasks are attempted only if an `environment` is given."""


WebhookUrl = Annotated[str, Field(min_length=1, max_length=2_000)]
WebhookEvents = Annotated[list[EventType], Field(max_length=len(EventType))]


class RunWebhook(RequestPart):
    """A webhook endpoint for this run only."""

    url: WebhookUrl
    """Where to send the events: an http or https URL. Its address is checked now and before every request."""
    events: WebhookEvents = Field(default_factory=list)
    """Event types to send. Empty: all."""


class EvaluationChoice(RequestPart):
    """Held-out evaluation. Each scenario gets one greedy rollout and `samples` sampled ones."""

    every: int | None = Field(default=None, ge=1, le=10_000)
    """Number of iterations between evaluations on the validation scenarios. Default: follows the base model; 4 for
    `learnloop/tiny`."""
    scenarios: int | None = Field(default=None, ge=0, le=1_000)
    """Number of validation scenarios; if there are fewer, each is used once. 0: none; then the newest checkpoint counts
    as the best. Default: follows the base model; 24 for `learnloop/tiny`."""
    test_scenarios: int | None = Field(default=None, ge=0, le=1_000)
    """Number of test scenarios, evaluated at the start and at the end of the run; if there are fewer, each is used
    once. 0: none. Default: follows the base model; 64 for `learnloop/tiny`."""
    baseline_width: float | None = Field(default=None, ge=0, le=1)
    """The evaluation before training ends after a batch of 64 scenarios of a split when the 95% intervals of its
    success, sampled and greedy, are narrower than this. 0: it has all scenarios. Default: follows the base model; 0.1
    for bases whose size is known, so that 0 of 64 suffice, and 0 for `learnloop/tiny`."""
    best: Literal["newest", "highest"] | None = None
    """Which validated checkpoint is the best: the `newest` whose success cannot be told apart from the highest, or the
    one with the `highest` success. Default: `highest` for bases whose size is known, `newest` for `learnloop/tiny`."""
    samples: int | None = Field(default=None, ge=1, le=32)
    """Number of sampled rollouts per scenario. Default: follows the base model; 2 for `learnloop/tiny`."""
    seed: int = Field(default=HELD_OUT_SEED, ge=0, lt=2**31)
    """Seed of the held-out scenarios and their rollouts. Runs with the same one are evaluated on the same scenarios,
    whatever the seed of their training is."""


class BudgetChoice(RequestPart):
    """Limits of a run; null means no limit. The run pauses before a call that could exceed one of them."""

    max_usd: float | None = Field(default=None, gt=0, le=1e9)
    """Limit in US dollars for judge calls, as far as their price is known. Null: no limit."""
    max_minutes: float | None = Field(default=None, gt=0, le=1e9)
    """Limit in minutes that workers spend on the run, not counting time in the queue or paused. Null: no limit."""
    max_tokens: int | None = Field(default=None, ge=1, le=10**15)
    """Limit for the prompt and completion tokens of the agent and the judges together. Null: no limit."""


class CheckpointsChoice(RequestPart):
    """Which checkpoints to keep during the run. The best one, the newest two, promoted ones and those that other runs
    need are always kept, and all of a run that is starred."""

    keep_best: int = Field(default=1, ge=1, le=10_000)
    """Keep this many checkpoints with the highest success on the validation scenarios."""
    keep_last: int = Field(default=2, ge=1, le=10_000)
    """Keep this many of the newest checkpoints."""
    keep_every: int | None = Field(default=None, ge=1, le=10_000)
    """Also keep each checkpoint whose step is a multiple of this number. Null: no others."""
    keep_evaluated: int = Field(default=0, ge=0, le=10_000)
    """Also keep this many of those that were evaluated, spread over the run. The run's page compares them."""


class NoSignalChoice(RequestPart):
    """What to do with a run that learns nothing: no group of an iteration has rewards that differ, so that nothing is
    trained. In any case such an iteration has an event `iteration.no_signal` and is named in the run's `warnings`."""

    action: Literal["continue", "pause", "fail"] = "continue"
    """What to do then: `continue` only warns, `pause` pauses the run, `fail` ends it as failed."""
    after: int = Field(default=3, ge=1, le=10_000)
    """Number of such iterations in a row after which it is done."""


PointPrices = Annotated[
    dict[Literal["usd_per_point", "minutes_per_point", "tokens_per_point"], Annotated[float, Field(gt=0, le=1e15)]],
    Field(min_length=1),
]


class StopWhenChoice(RequestPart):
    """Rules that end a run as completed after an evaluation, whichever holds first."""

    target: float | None = Field(default=None, gt=0, lt=1)
    """Success of sampled validation rollouts, from 0 to 1. Bets over all evaluations must show that it was reached."""
    plateau: bool = False
    """Bets must show that success would rise by less than 30 points in as many iterations as were asked for."""
    no_gain: PointPrices | None = None
    """Another point of success is expected to cost more than this: `usd_per_point` for calls and machine (ends nothing
    while no price is known), `minutes_per_point` of work or `tokens_per_point` of the agent."""

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        if self.target is None and self.no_gain is None and not self.plateau:
            raise ValueError("Give at least one of target, no_gain and plateau.")
        return self


class DiagnosisChoice(RequestPart):
    """What to do with a run when a cause is named why it does not learn. In any case there is an event
    `run.diagnosis`, and `GET /runs/{run_id}/diagnosis` shows it."""

    action: Literal["warn", "pause"] = "warn"
    """What to do then: `warn` only reports it, `pause` also pauses the run."""
    severity: Literal["warning", "fault"] = "fault"
    """Least severity at which the run is paused: `warning` (learning suffers) or `fault` (the run does not do what it
    says)."""


class PipelineChoice(RequestPart):
    """The asynchronous pipeline: rollouts that begin while earlier iterations train and are evaluated."""

    max_staleness: int = Field(default=_DEFAULTS.pipeline.max_staleness, ge=0, le=32)
    """Number of iterations that rollouts may run ahead; they are sampled from a policy at most that many steps older
    than the one that is trained on them. 0: rollouts, then training, one after the other."""


class StoredDemonstrations(RequestPart):
    """Demonstrations that were stored by `POST /demonstrations`."""

    dataset: Annotated[str, Field(pattern=DATASET_VERSION_PATTERN)]
    """Their name, as `NAME` (the newest version now) or `NAME@VERSION`."""


class OracleDemonstrations(RequestPart):
    """Demonstrations of the environment's own oracle, which knows the answers of its training scenarios."""

    oracle: int = Field(ge=1, le=100_000)
    """Number of training scenarios that the oracle solves."""


_STORED, _ORACLE = "stored demonstrations", "the oracle's demonstrations"
Demonstrations = Annotated[
    Annotated[StoredDemonstrations, Tag(_STORED)] | Annotated[OracleDemonstrations, Tag(_ORACLE)],
    Discriminator(lambda value: _ORACLE if _has_oracle(value) else _STORED),
]


def _has_oracle(value: object) -> bool:
    return "oracle" in value if isinstance(value, dict) else isinstance(value, OracleDemonstrations)


class WarmStartChoice(RequestPart):
    """Supervised iterations on demonstrations, which come before those of reinforcement learning. Each trains on the
    tokens that the assistant wrote, and makes a checkpoint."""

    demonstrations: Demonstrations
    """Conversations to imitate: `{"dataset": NAME}` or `{"oracle": COUNT}`."""
    epochs: int = Field(default=_WARM_START.epochs, ge=1, le=1_000)
    """How often each demonstration is trained on. The order is drawn anew in each epoch."""
    batch_size: int = Field(default=_WARM_START.batch_size, ge=1, le=1_024)
    """Demonstrations in one optimizer step."""
    learning_rate: float | None = Field(default=None, gt=0, le=0.1)
    """Highest learning rate: it is reached after a tenth of all optimizer steps, and falls to zero from there. Default:
    follows the base model's size and tuning; 0.0005 for `learnloop/tiny`, 0.0001 for a LoRA on 1.5B parameters."""
    held_out: float = Field(default=_WARM_START.held_out, ge=0, le=0.5)
    """Share of the demonstrations that are not trained on, to measure the loss on them."""
    demonstrations_per_iteration: int | None = Field(default=None, ge=1, le=100_000)
    """Demonstrations after which an iteration ends, and with it a checkpoint is made. Null: an epoch."""


PromptName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,62}(@[0-9]{1,9})?|[0-9a-f]{64})$")]


class LearnLoopRequest(RequestBody):
    """A learn-loop to start. Every field has a default.

    `graph` without `environment` selects the environment whose document it is (`GET /environments`); `depth` is another
    name for `max_turns` there.
    """

    model_config = ConfigDict(
        json_schema_extra=examples_with_graph(
            {"environment": {"name": "email_search"}, "iterations": 14},
            {
                "environment": {"name": "email_search"},
                "model": {"name": "mail-agent"},
                "iterations": 30,
                "seed": 1,
                "evaluation": {"every": 5, "scenarios": 32},
                "budget": {"max_minutes": 60},
                "checkpoints": {"keep_best": 1, "keep_last": 2},
            },
            iterations=2,
            depth=8,
        )
    )

    name: RunName | None = None
    """What to call the run: one line of at most 100 characters, without spaces at its ends; `PATCH /runs/{run_id}`
    changes it. Default: what differs from the defaults, such as `lr 1e-12 · seed 4`, or the name of the model, if
    `model.name` is given."""
    graph: GraphSource = None
    """Nodes of a graph, or `{"sha256"}` of one stored by `POST /graphs`. Default: none."""
    depth: int | None = Field(default=None, ge=1, le=100)
    """Maximum number of turns per rollout, when `graph` is given. Default: that of `max_turns`."""
    environment: EnvironmentChoice = Field(default_factory=EnvironmentChoice)
    """What the agent acts in: an environment and its settings. Default: `email_search` with synthetic inboxes."""
    source: SourceChoice | None = None
    """Scenarios of the environment `agent` from sessions in production, in place of `environment.config.scenarios`.
    Each has the session's first request and the answers of its tools. Default: none."""
    agent: AgentChoice | None = None
    """The agent that makes the rollouts, if it is to own its loop. Default: the built-in loop, which executes the tool
    calls of each reply until the task is done."""
    judge: Judges | None = None
    """One judge, or a list of 2 to 8 whose scores are combined as a weighted mean. Default: the environment's own
    judge."""
    prompt: PromptName | None = None
    """A stored prompt (`POST /prompts`): `NAME`, `NAME@VERSION` or its SHA-256. It replaces texts of the environment in
    the run's rollouts, in the demonstrations of an oracle and in its evaluations. Default: the environment's texts."""
    model: ModelChoice = Field(default_factory=ModelChoice)
    """The model to train. Default: a new one, trained from the base model of the service."""
    backend: Name | None = None
    """Where the model is trained; see `GET /backends`. Default: set by the service (LEARNLOOP_BACKEND)."""
    warm_start: WarmStartChoice | None = None
    """Demonstrations to learn from first. Default: 480 of the environment's oracle for a new model whose base is not
    `learnloop/tiny`, if the environment has an oracle; else none. Null: none."""
    iterations: int | None = Field(default=None, ge=0, le=10_000)
    """Number of training iterations, each of rollouts, judging and one training step. 0 is possible with a
    `warm_start`: the run learns from demonstrations only. Default: follows the base model; 14 for `learnloop/tiny`,
    and for others whose size is known 24 (a LoRA) or 30 after demonstrations and 45 without. The reply to the request
    and the run show all such defaults with their reasons."""
    groups_per_iteration: int | None = Field(default=None, ge=1, le=256)
    """Number of scenarios per iteration. The rollouts of one scenario are a group. Default: follows the base model; 8
    for `learnloop/tiny`, 16 for others whose size is known."""
    rollouts_per_group: int | None = Field(default=None, ge=2, le=256)
    """Number of rollouts per scenario. At least 2, because rewards are compared within a group. Default: 8."""
    end_when_learned: bool = False
    """Whether the run ends as completed after the iteration that shows that little is left to learn, as the diagnosis
    `too_easy` says it: in most groups every rollout succeeds. The last iteration is evaluated as in any run."""
    stop_when: StopWhenChoice | None = None
    """Ends the run before all its iterations. Default: nothing does."""
    replace_groups: bool | None = None
    """Whether each group whose rewards are all equal is replaced by a group of another scenario, so that the run learns
    from more: one for each, in the iteration whose rollouts begin next. An iteration after one that teaches nothing has
    twice as many rollouts and verdicts. Default: false for `learnloop/tiny`, true for others whose size is known."""
    scenario_sampling: Literal["passes", "difficulty"] | None = None
    """How the scenarios of an iteration are drawn. `passes`: all in shuffled order, and again. `difficulty`: half
    uniformly, and half of those whose rollouts in earlier iterations differed most, which teach most; the figures of
    training weigh each rollout by the inverse of its `inclusion` probability. Default: `passes` for `learnloop/tiny`,
    bases of unknown size and runs without `replace_groups`, `difficulty` for others."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    """Maximum number of turns per rollout; a turn is one reply of the agent. Default: set by the environment, which is
    8 for both included ones."""
    max_completion_tokens: int = Field(default=_DEFAULTS.max_completion_tokens, ge=1, le=32_768)
    """Maximum number of tokens per turn of the agent."""
    learning_rate: float | None = Field(default=None, gt=0, le=0.1)
    """Learning rate of the optimizer after the warm-up. Default: follows the base model's size and tuning; 0.0007 for
    `learnloop/tiny`, 0.0002 for a LoRA on 1.5B parameters, 0.00001 for a whole model of that size."""
    warmup_iterations: int | None = Field(default=None, ge=1, le=1_000)
    """Number of iterations over which the learning rate rises linearly to its full value. Default: 3."""
    temperature: float = Field(default=_DEFAULTS.temperature, gt=0, le=2)
    """Sampling temperature of the training rollouts. The log-probabilities that training uses are those without it, so
    any other than 1 turns the gradient away: its cosine to the exact one was 0.984 at 0.5 and 0.93 at 0.3."""
    seed: int = Field(default=_DEFAULTS.seed, ge=0, lt=2**31)
    """Seed of the scenario order and of sampling. On the engine and a CPU, the same seed gives the same run."""
    concurrency: int | None = Field(default=None, ge=1, le=1_024)
    """Maximum number of simultaneous rollouts. Default: all of an iteration, on a CPU at most 64; 64 for
    `learnloop/tiny`."""
    rollout_timeout_s: float = Field(default=_DEFAULTS.rollout_timeout_s, ge=1, le=86_400)
    """Seconds after which a rollout counts as failed."""
    train_options: TrainOptionsChoice = Field(default_factory=TrainOptionsChoice)
    """How each GRPO step is taken: loss, clipping, importance sampling, KL penalty. Default: ART's defaults."""
    pipeline: PipelineChoice = Field(default_factory=PipelineChoice)
    """Whether rollouts run ahead of training, and how far. Default: they do not."""
    evaluation: EvaluationChoice = Field(default_factory=EvaluationChoice)
    """How often and on how many held-out scenarios the model is evaluated."""
    budget: BudgetChoice | None = None
    """Limits for dollars, minutes and tokens. Default: no limits."""
    checkpoints: CheckpointsChoice | None = None
    """Which checkpoints to keep. Default: all for `learnloop/tiny`; for other bases whose size is known the best one,
    the newest two and six others that were evaluated. Null: all."""
    keep_rollouts: bool | None = None
    """Whether to keep the token ids and exact log-probabilities of the run's rollouts, a few kB each. Default: true
    for models of the service's engine, false for others."""
    on_no_signal: NoSignalChoice = Field(default_factory=NoSignalChoice)
    """What to do if iterations train nothing, because no rewards differ. Default: only warn."""
    on_diagnosis: DiagnosisChoice = Field(default_factory=DiagnosisChoice)
    """What to do when a cause is named why the run does not learn. Default: only report it."""
    on_collapse: OnCollapse | None = None
    """What to do when a step broke the policy: by the next rollouts, success fell by 30 points or malformed replies
    rose by 30, and chance does not explain it. `step_back`: the policy continues from the weights before that step, at
    half the learning rate; from the third time on the run pauses as well. `pause`: the run pauses. `continue`: it is
    only named as the cause `policy_collapsed`. Default: `continue` for `learnloop/tiny` and bases of unknown size,
    `step_back` for others; a run whose backend cannot go back pauses instead."""
    webhooks: list[RunWebhook] = Field(default_factory=list, max_length=10)
    """Endpoints that receive the events of this run, from the first one on. Default: none."""

    @field_validator("iterations")
    @classmethod
    def _trains(cls, iterations: int | None, info: ValidationInfo) -> int | None:
        if iterations == 0 and info.data.get("warm_start") is None:
            raise ValueError("must be at least 1 in a run without a warm_start")
        return iterations

    @model_validator(mode="after")
    def _can_stop(self) -> Self:
        if self.stop_when is not None and self.evaluation.scenarios == 0:
            raise ValueError("stop_when needs validation scenarios, and evaluation.scenarios is 0")
        return self


class ResumeRequest(RequestBody):
    """How to resume a paused run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"budget": {"max_minutes": 120}}]})

    budget: BudgetChoice | None = None
    """New limits. Limits that are not given stay as they are; null removes a limit."""


class ForkRequest(LearnLoopRequest):
    """A new run that starts from a checkpoint of an existing run, with the request of that run except for the fields
    given here.

    The new run trains a new model. Project, backend and environment name cannot be changed.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"checkpoint": 12, "iterations": 10, "seed": 1}]})

    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    """Step of the checkpoint to start from. Default: the best checkpoint of the run."""

    @model_validator(mode="after")
    def _keeps_its_place(self) -> Self:
        for name in ("graph", "depth", "source", "backend"):
            if name in self.model_fields_set:
                raise ValueError(f"{name} cannot be set in a fork: {_INSTEAD[name]}")
        if self.model.model_fields_set - {"name"}:
            raise ValueError("a fork can only set model.name: project and base model are those of the parent run")
        return self


_INSTEAD = {
    "graph": "set environment.config instead",
    "depth": "set max_turns instead",
    "source": "set environment.config.scenarios instead",
    "backend": "it must be the backend that has the checkpoint",
}


class RunEdit(RequestBody):
    """What its owner says about a run. Fields that are not given stay as they are."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "lower rate", "tags": ["paper"], "starred": True}]}
    )

    name: RunName | None = None
    """What to call it: one line of at most 100 characters, without spaces at its ends. Null: by its model's name."""
    tags: list[Annotated[str, Field(max_length=40)]] = Field(default_factory=list, max_length=20)
    """All its tags: at most 20, each of at most 40 characters without spaces and commas."""
    notes: str = Field(default="", max_length=10_000)
    """Notes of at most 10,000 characters."""
    starred: bool = False
    """Whether it is starred."""

    @field_validator("tags")
    @classmethod
    def _are_words(cls, tags: list[str]) -> list[str]:
        for tag in tags:
            if re.fullmatch(r"[^\s,]+", tag) is None:
                raise ValueError(f"A tag has no spaces and commas, unlike {tag!r}; write several as several items.")
        return list(dict.fromkeys(tags))

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("Give at least one of name, tags, notes and starred.")
        return self
