"""Bodies of the requests and responses about runs. Requests refuse unknown fields; every size is bounded."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import Discriminator, Field, Tag, WithJsonSchema, model_validator

from app.domain.event_types import EventType
from app.domain.names import NAME_PATTERN
from app.domain.run_state import RunStatus
from app.schemas.base import RequestBody, RequestPart, ResponseModel
from app.schemas.results import RunCost, ShowcaseEmail
from training.types import RunConfig

Json = Any
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Split = Literal["train", "validation", "test"]
Mode = Literal["sampled", "greedy"]
Kind = Literal["train", "evaluation", "showcase", "ask"]
Item = TypeVar("Item")
_DEFAULTS = RunConfig()


class EnvironmentChoice(RequestPart):
    """The environment that the agent acts in: its task, tools and reward."""

    name: Name = "email_search"
    """One of `GET /environments`."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this environment."""


class JudgeChoice(RequestPart):
    """The judge that scores the rollouts."""

    name: Name | None = None
    """One of `GET /judges`. Default: the environment's own judge."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this judge."""


class WeightedJudge(RequestPart):
    """One of several judges whose scores are averaged."""

    name: Name
    """One of `GET /judges`."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this judge."""
    weight: float = Field(gt=0, le=1_000)
    """Relative to the weights of the other judges."""


UNION_TAGS = ("one judge", "several judges")
"""Pydantic puts them into the location of an error, where they name no field."""
Judges = Annotated[
    Annotated[JudgeChoice, Tag(UNION_TAGS[0])]
    | Annotated[list[WeightedJudge], Field(min_length=2, max_length=8), Tag(UNION_TAGS[1])],
    Discriminator(lambda value: UNION_TAGS[isinstance(value, list)]),
]

GraphSource = Annotated[
    Json,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "object"}},
                {"type": "object", "properties": {"sha256": {"type": "string"}}, "required": ["sha256"]},
                {"type": "null"},
            ]
        }
    ),
]
"""Nodes, or the `{"sha256"}` of a stored graph. The environment checks them: only it knows what a node is."""


class ModelChoice(RequestPart):
    """The model to train. If the project already has a model of this name, training continues from it."""

    name: Name | None = None
    """Default: chosen by the service."""
    project: Name | None = None
    """Default: the project of the API key, else that of the service."""
    base_model: str | None = Field(default=None, min_length=1, max_length=300)
    """A base model, or `PROJECT/NAME@STEP` for a checkpoint of the same project. Default: set by the service."""


WebhookUrl = Annotated[str, Field(min_length=1, max_length=2_000)]
WebhookEvents = Annotated[list[EventType], Field(max_length=len(EventType))]


class RunWebhook(RequestPart):
    """A webhook endpoint for this run only."""

    url: WebhookUrl
    """http or https. The address is checked now and before every request."""
    events: WebhookEvents = Field(default_factory=list)
    """Event types to send. Empty: all."""


class EvaluationChoice(RequestPart):
    """Held-out evaluation. Each scenario gets one greedy rollout and `samples` sampled ones."""

    every: int = Field(default=_DEFAULTS.evaluation.every, ge=1, le=10_000)
    """Number of iterations between evaluations on the validation scenarios."""
    scenarios: int = Field(default=_DEFAULTS.evaluation.scenarios, ge=1, le=1_000)
    """Number of validation scenarios."""
    test_scenarios: int = Field(default=_DEFAULTS.evaluation.test_scenarios, ge=1, le=1_000)
    """Number of test scenarios, evaluated at the start and at the end of the run."""
    samples: int = Field(default=_DEFAULTS.evaluation.samples, ge=1, le=32)
    """Sampled rollouts per scenario."""


class BudgetChoice(RequestPart):
    """Limits of a run; null means no limit. The run pauses before a call that could exceed one of them."""

    max_usd: float | None = Field(default=None, gt=0, le=1e9)
    """US dollars for judge calls, as far as their price is known."""
    max_minutes: float | None = Field(default=None, gt=0, le=1e9)
    """Minutes that a worker spends on the run."""
    max_tokens: int | None = Field(default=None, ge=1, le=10**15)
    """Prompt and completion tokens of the agent and the judges."""


class CheckpointsChoice(RequestPart):
    """Which checkpoints to keep during the run. The best one, promoted ones and those that other runs need are always
    kept."""

    keep_best: int = Field(default=1, ge=1, le=10_000)
    """Keep this many with the highest success on the validation scenarios."""
    keep_last: int = Field(default=2, ge=1, le=10_000)
    """Keep this many of the newest."""
    keep_every: int | None = Field(default=None, ge=1, le=10_000)
    """Also keep each checkpoint whose step is a multiple of this number."""


class LearnLoopRequest(RequestBody):
    """A learn-loop to start. Every field has a default.

    `graph` without `environment` selects the environment `sales_email` on that graph; `depth` is another name for
    `max_turns` there.
    """

    graph: GraphSource = None
    """Nodes of a knowledge graph, or `{"sha256"}` of one stored by `POST /graphs`."""
    depth: int | None = Field(default=None, ge=1, le=100)
    """Maximum turns per rollout, when `graph` is given."""
    environment: EnvironmentChoice = Field(default_factory=EnvironmentChoice)
    judge: Judges | None = None
    """One judge, or a list whose scores are combined as a weighted mean. Default: the environment's own judge."""
    model: ModelChoice = Field(default_factory=ModelChoice)
    backend: Name | None = None
    """Where the model is trained; see `GET /backends`. Default: set by the service."""
    iterations: int = Field(default=_DEFAULTS.iterations, ge=1, le=10_000)
    """Number of training iterations, each of rollouts, judging and one training step."""
    groups_per_iteration: int = Field(default=_DEFAULTS.groups_per_iteration, ge=1, le=256)
    """Scenarios per iteration."""
    rollouts_per_group: int = Field(default=_DEFAULTS.rollouts_per_group, ge=2, le=256)
    """Rollouts per scenario. At least 2: rewards are compared within a group."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    """Maximum turns per rollout. Default: set by the environment."""
    max_completion_tokens: int = Field(default=_DEFAULTS.max_completion_tokens, ge=1, le=32_768)
    """Maximum tokens per turn of the agent."""
    learning_rate: float = Field(default=_DEFAULTS.learning_rate, gt=0, le=0.1)
    warmup_iterations: int = Field(default=_DEFAULTS.warmup_iterations, ge=1, le=1_000)
    """Iterations over which the learning rate rises linearly to its full value."""
    temperature: float = Field(default=_DEFAULTS.temperature, gt=0, le=2)
    """Sampling temperature of the training rollouts."""
    seed: int = Field(default=_DEFAULTS.seed, ge=0, lt=2**31)
    """Seed of the scenario order and of sampling."""
    concurrency: int = Field(default=_DEFAULTS.concurrency, ge=1, le=1_024)
    """Maximum number of simultaneous rollouts."""
    evaluation: EvaluationChoice = Field(default_factory=EvaluationChoice)
    budget: BudgetChoice | None = None
    checkpoints: CheckpointsChoice | None = None
    """Which checkpoints to keep. Default: all."""
    webhooks: list[RunWebhook] = Field(default_factory=list, max_length=10)
    """Endpoints that receive the events of this run, from the first one on."""


class ResumeRequest(RequestBody):
    """How to resume a paused run."""

    budget: BudgetChoice | None = None
    """New limits. Omitted limits stay as they are; null removes a limit."""


class ForkRequest(LearnLoopRequest):
    """A new run that starts from a checkpoint of an existing run, with the request of that run except for the fields
    given here.

    The new run trains a new model. Project, backend and environment name cannot be changed.
    """

    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    """Step of the checkpoint to start from. Default: the best one."""

    @model_validator(mode="after")
    def _keeps_its_place(self) -> Self:
        for name in ("graph", "depth", "backend"):
            if name in self.model_fields_set:
                raise ValueError(f"{name} cannot be set in a fork: {_INSTEAD[name]}")
        if self.model.model_fields_set - {"name"}:
            raise ValueError("a fork can only set model.name: project and base model are those of the parent run")
        return self


_INSTEAD = {
    "graph": "set environment.config instead",
    "depth": "set max_turns instead",
    "backend": "it must be the backend that has the checkpoint",
}


class AskRequest(RequestBody):
    """One task for the trained agent of a run, or for a model by name.

    Which fields describe the task depends on the environment: `email_search` takes a question and its inbox,
    `sales_email` a prospect and a company, any other environment its own `input`.
    """

    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    """The run whose agent does the task. Give either this or `model`."""
    model: str | None = Field(default=None, min_length=1, max_length=300)
    """A base model, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name."""
    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    """Step of the checkpoint to use. Default: the best one of the run."""
    environment: EnvironmentChoice | None = None
    """Default: that of the run."""
    input: dict[str, Json] | None = None
    """The whole task in the environment's own form, instead of the fields below."""
    question: str | None = Field(default=None, min_length=1, max_length=10_000)
    """email_search: the question to answer."""
    inbox_address: str | None = Field(default=None, max_length=320)
    """email_search: the address of the inbox to search."""
    query_date: str | None = Field(default=None, max_length=40)
    """email_search: the date on which the question is asked."""
    prospect: str | None = Field(default=None, max_length=1_000)
    """sales_email: name of the person to write to."""
    company: str | None = Field(default=None, max_length=1_000)
    """sales_email: company of the prospect."""
    role: str | None = Field(default=None, max_length=1_000)
    """sales_email: job title of the prospect."""
    goal: str | None = Field(default=None, max_length=1_000)
    """sales_email: what the email should achieve."""
    start: str | list[str] | None = None
    """sales_email: ids of the nodes to start from."""
    graph: str | None = Field(default=None, max_length=200)
    """sales_email: name of a synthetic graph, such as `test.0.17`."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.run_id is None) == (self.model is None):
            raise ValueError("give either run_id or model")
        if self.input is not None and self._named():
            raise ValueError(f"input is the whole task: put {', '.join(self._named())} into it")
        return self

    def _named(self) -> dict[str, Json]:
        return self.model_dump(exclude={"run_id", "model", "checkpoint", "environment", "input"}, exclude_none=True)

    def task(self) -> dict[str, Json]:
        """What the environment is asked."""
        return self._named() if self.input is None else self.input


class InvokeParameters(RequestPart):
    """The question to answer."""

    question: str = Field(min_length=1, max_length=10_000)
    inbox_address: str | None = Field(default=None, max_length=320)
    """The address of the inbox to search."""
    query_date: str | None = Field(default=None, max_length=40)
    """The date on which the question is asked."""


class InvokeRequest(RequestBody):
    """A question in the form of a ZenML pipeline deployment."""

    parameters: InvokeParameters


class GraphRequest(RequestBody):
    """A knowledge graph to store."""

    graph: list[Json]
    """The nodes, in the form that `POST /learn-loop` takes."""


class ScenariosRequest(RequestBody):
    """Scenarios to store. The environment checks them, on the graph if one is given."""

    environment: Name
    scenarios: list[Json]
    graph: GraphSource = None
    """Nodes, or `{"sha256"}` of a stored graph."""


class GraphStored(ResponseModel):
    """A stored graph. Pass its `sha256` as `{"sha256": ...}` in the field `graph` of a learn-loop."""

    sha256: str
    nodes: int
    edges: int
    """As given: an edge that was given twice counts twice."""
    links: dict[str, str]


class ScenariosStored(ResponseModel):
    """Stored scenarios. Pass their `sha256` as `{"sha256": ...}` in `environment.config.scenarios`."""

    sha256: str
    count: int
    links: dict[str, str]


class Page(ResponseModel, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""


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


class TrajectoryBrief(ResponseModel):
    """A trajectory, as listed: without messages, tools and explanations."""

    id: str
    run_id: str | None
    kind: Kind
    iteration: int | None
    split: Split
    mode: Mode
    model: str
    step: int | None
    scenario_id: str
    scenario: dict[str, Json]
    outcome: dict[str, Json]
    """What the rollout produced, such as an answer or an email."""
    score: float | None
    """The judge's score in [0, 1]; null if it gave none."""
    reward: float | None
    """The number that training uses."""
    advantage: float | None
    """The reward compared with the group's mean."""
    success: bool | None
    error: str | None
    turns: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    started_at: datetime


class TrajectoryOut(TrajectoryBrief):
    """A trajectory with its messages, tools and the details of its score and reward."""

    messages: list[Json]
    tools: list[Json]
    score_explanation: str | None
    score_parts: dict[str, float]
    """The judges' scores that the score is made of."""
    reward_parts: dict[str, float]
    """The terms that add up to the reward."""


class Email(ResponseModel):
    """An email that the agent wrote. It is plain text: escape it before showing it on a page."""

    subject: str
    body: str
    citations: list[str]
    """Ids of the cited nodes."""


class AskOut(ResponseModel):
    """The agent's answer."""

    question: str | None
    """Null if the task was not a question."""
    answer: str | None
    """The answer, or the body of the email."""
    source_ids: list[str]
    """Ids of the emails or nodes that the agent cites."""
    success: bool
    """Whether the agent gave an answer. There is no reference to say whether it is right."""
    email: Email | None = None
    trajectory_id: str
    """The stored trajectory, at `GET /trajectories/{trajectory_id}`."""
    model: str
    step: int | None


class InvokeOut(ResponseModel):
    """The agent's answer."""

    question: str
    answer: str | None
    source_ids: list[str]
    """Ids of the emails that the agent cites."""
    success: bool
    """Whether the agent gave an answer."""
