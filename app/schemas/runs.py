"""Shapes of the API's requests and responses. Requests refuse unknown fields; every size is bounded."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from app.db.json_text import flaw
from app.domain.event_types import EventType
from app.domain.names import NAME_PATTERN
from app.domain.run_state import RunStatus
from app.schemas.results import RunCost, ShowcaseEmail
from training.types import RunConfig

Json = Any
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Split = Literal["train", "validation", "test"]
Mode = Literal["sampled", "greedy"]
Kind = Literal["train", "evaluation", "showcase", "ask"]
Item = TypeVar("Item")
_DEFAULTS = RunConfig()


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Request(_Part):
    """A whole body."""

    @model_validator(mode="before")
    @classmethod
    def _without_flaw(cls, value: Json) -> Json:
        if (why := flaw(value)) is not None:
            raise ValueError(why)
        return value


class EnvironmentChoice(_Part):
    """Which job the agent does; `config` is the environment's own."""

    name: Name = "email_search"
    config: dict[str, Json] = Field(default_factory=dict)


class JudgeChoice(_Part):
    """Who scores the attempts; `config` is the judge's own. Without a name: the environment's default."""

    name: Name | None = None
    config: dict[str, Json] = Field(default_factory=dict)


class WeightedJudge(_Part):
    """One of several judges; weights count relative to each other."""

    name: Name
    config: dict[str, Json] = Field(default_factory=dict)
    weight: float = Field(gt=0, le=1_000)


UNION_TAGS = ("one judge", "several judges")
"""Pydantic puts them into the place of an error, where they name no field."""
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
"""Nodes, or `{"sha256"}` of stored ones. The environment checks them: no other knows what a node is."""


class ModelChoice(_Part):
    """Which model is trained. A project and name that exist are trained on. None takes the service's defaults."""

    name: Name | None = None
    project: Name | None = None
    base_model: str | None = Field(default=None, min_length=1, max_length=300)
    """A base model, or PROJECT/NAME@STEP: a checkpoint of the same project."""


WebhookUrl = Annotated[str, Field(min_length=1, max_length=2_000)]
"""http or https. Where it leads is checked now and whenever something is sent."""
WebhookEvents = Annotated[list[EventType], Field(max_length=len(EventType))]
"""Which types are sent; empty: all."""


class RunWebhook(_Part):
    """An endpoint that hears of one run, given when the run is started."""

    url: WebhookUrl
    events: WebhookEvents = Field(default_factory=list)


class EvaluationChoice(_Part):
    """Held-out evaluation: every `every` iterations on `scenarios` validation scenarios, at the start and the end also
    on `test_scenarios` test scenarios; one greedy and `samples` sampled tries each."""

    every: int = Field(default=_DEFAULTS.evaluation.every, ge=1, le=10_000)
    scenarios: int = Field(default=_DEFAULTS.evaluation.scenarios, ge=1, le=1_000)
    test_scenarios: int = Field(default=_DEFAULTS.evaluation.test_scenarios, ge=1, le=1_000)
    samples: int = Field(default=_DEFAULTS.evaluation.samples, ge=1, le=32)


class BudgetChoice(_Part):
    """What a run may spend: the price of its judge calls where it is known, the time it is driven, and all tokens. None
    is no limit. The run pauses before the call that might go beyond one."""

    max_usd: float | None = Field(default=None, gt=0, le=1e9)
    max_minutes: float | None = Field(default=None, gt=0, le=1e9)
    max_tokens: int | None = Field(default=None, ge=1, le=10**15)


class CheckpointsChoice(_Part):
    """Which checkpoints are kept while the run goes on. The run's best, what is promoted and what other runs need stay
    in any case."""

    keep_best: int = Field(default=1, ge=1, le=10_000)
    """The best so many, by success on the validation scenarios."""
    keep_last: int = Field(default=2, ge=1, le=10_000)
    """The newest so many."""
    keep_every: int | None = Field(default=None, ge=1, le=10_000)
    """Those whose step is a multiple of it."""


class LearnLoopRequest(_Request):
    """A learn-loop. Everything has a default.

    `graph` alone stands for the environment `sales_email` on that graph, and `depth` beside it for `max_turns`.
    """

    graph: GraphSource = None
    depth: int | None = Field(default=None, ge=1, le=100)
    environment: EnvironmentChoice = Field(default_factory=EnvironmentChoice)
    judge: Judges | None = None
    """None takes the environment's own; a list is scored by their weighted mean."""
    model: ModelChoice = Field(default_factory=ModelChoice)
    backend: Name | None = None
    iterations: int = Field(default=_DEFAULTS.iterations, ge=1, le=10_000)
    groups_per_iteration: int = Field(default=_DEFAULTS.groups_per_iteration, ge=1, le=256)
    rollouts_per_group: int = Field(default=_DEFAULTS.rollouts_per_group, ge=2, le=256)
    """One rollout alone has nothing to be compared with."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    max_completion_tokens: int = Field(default=_DEFAULTS.max_completion_tokens, ge=1, le=32_768)
    learning_rate: float = Field(default=_DEFAULTS.learning_rate, gt=0, le=0.1)
    warmup_iterations: int = Field(default=_DEFAULTS.warmup_iterations, ge=1, le=1_000)
    temperature: float = Field(default=_DEFAULTS.temperature, gt=0, le=2)
    seed: int = Field(default=_DEFAULTS.seed, ge=0, lt=2**31)
    concurrency: int = Field(default=_DEFAULTS.concurrency, ge=1, le=1_024)
    evaluation: EvaluationChoice = Field(default_factory=EvaluationChoice)
    budget: BudgetChoice | None = None
    checkpoints: CheckpointsChoice | None = None
    """None keeps all."""
    webhooks: list[RunWebhook] = Field(default_factory=list, max_length=10)
    """Who hears of this run alone, from its first event on."""


class ResumeRequest(_Request):
    """How a paused run goes on. What the budget does not name stays as it is; null takes a limit away."""

    budget: BudgetChoice | None = None


class ForkRequest(LearnLoopRequest):
    """A new run that goes on from a run's checkpoint, with its request but for what is given here.

    The new run trains a model of its own. Project, backend and the environment's name stay as they are.
    """

    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    """A step of the run; None takes the best one."""

    @model_validator(mode="after")
    def _keeps_its_place(self) -> Self:
        for name in ("graph", "depth", "backend"):
            if name in self.model_fields_set:
                raise ValueError(f"{name} is not for a fork: {_INSTEAD[name]}")
        if self.model.model_fields_set - {"name"}:
            raise ValueError("of model only the name is given: project and base model follow from the parent")
        return self


_INSTEAD = {
    "graph": "change environment.config",
    "depth": "it is called max_turns",
    "backend": "it stays where its checkpoint is",
}


class AskRequest(_Request):
    """A task for a run's trained agent, or for a model by name. `checkpoint` is a step; None takes the best one.

    What the task needs is the environment's: email_search takes the question and its inbox, sales_email the prospect
    and company, any other one its own `input`.
    """

    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    model: str | None = Field(default=None, min_length=1, max_length=300)
    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    environment: EnvironmentChoice | None = None
    input: dict[str, Json] | None = None
    question: str | None = Field(default=None, min_length=1, max_length=10_000)
    inbox_address: str | None = Field(default=None, max_length=320)
    query_date: str | None = Field(default=None, max_length=40)
    prospect: str | None = Field(default=None, max_length=1_000)
    company: str | None = Field(default=None, max_length=1_000)
    role: str | None = Field(default=None, max_length=1_000)
    goal: str | None = Field(default=None, max_length=1_000)
    start: str | list[str] | None = None
    graph: str | None = Field(default=None, max_length=200)
    """The name of a synthetic graph, such as `test.0.17`."""

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


class InvokeParameters(_Part):
    """What `POST /invoke` takes."""

    question: str = Field(min_length=1, max_length=10_000)
    inbox_address: str | None = Field(default=None, max_length=320)
    query_date: str | None = Field(default=None, max_length=40)


class InvokeRequest(_Request):
    """The form of ZenML pipeline deployments."""

    parameters: InvokeParameters


class GraphRequest(_Request):
    """A graph to store."""

    graph: list[Json]


class ScenariosRequest(_Request):
    """Scenarios to store, checked by that environment; on that graph, if it takes one."""

    environment: Name
    scenarios: list[Json]
    graph: GraphSource = None


class GraphStored(BaseModel):
    """Give `{"sha256"}` as the graph of a learn-loop. `edges` counts them as given."""

    sha256: str
    nodes: int
    edges: int
    links: dict[str, str]


class ScenariosStored(BaseModel):
    """Give `{"sha256"}` as the scenarios of a learn-loop."""

    sha256: str
    count: int
    links: dict[str, str]


class Page(BaseModel, Generic[Item]):
    """Part of a list; pass `next_cursor` as `cursor` for the next part. None: that was the last."""

    items: list[Item]
    next_cursor: str | None


class Accepted(BaseModel):
    """What was asked for was accepted; the run shows when it is done."""

    run_id: str
    status: RunStatus
    results_path: str
    links: dict[str, str]


class RunWebhookCreated(BaseModel):
    """An endpoint of the new run, with its secret, which is shown this once."""

    id: str
    url: str
    secret: str


class LearnLoopAccepted(Accepted):
    """A learn-loop was accepted."""

    webhooks: list[RunWebhookCreated] = []
    """Those of the request, in its order."""


class ModelOut(BaseModel):
    project: str
    name: str
    base_model: str


class Progress(BaseModel):
    """`phase` with `done` of `total` units in iteration `iteration`; all None before the start."""

    iterations_done: int
    iterations_total: int
    iteration: int | None
    phase: str | None
    done: int | None
    total: int | None


class Rewards(BaseModel):
    """Of the rollouts that have a reward."""

    mean: float | None
    median: float | None
    min: float | None
    max: float | None
    count: int


class IterationFigures(BaseModel):
    """The curve: one point an iteration."""

    iteration: int
    step: int
    rewards: Rewards
    success: float | None
    malformed: float | None


class IterationOut(IterationFigures):
    """One iteration in full."""

    best_step: int
    failed_rollouts: int
    skipped_groups: dict[str, int]
    train_metrics: dict[str, float | None]
    timing: dict[str, float]
    finished_at: datetime
    email: ShowcaseEmail | None = None
    """What the agent wrote after it, in an environment that shows emails."""


class EvaluationOut(BaseModel):
    """Held-out figures of one checkpoint."""

    iteration: int
    split: Split
    mode: Mode
    step: int
    scenarios: int
    success: float
    mean_reward: float
    malformed: float
    turns: float


class BestCheckpoint(BaseModel):
    step: int
    success: float | None
    """Sampled success on validation scenarios."""


class Tokens(BaseModel):
    prompt: int
    completion: int


class RunBrief(BaseModel):
    """A run in a list."""

    run_id: str
    status: RunStatus
    environment: str
    judge: str
    backend: str
    model: ModelOut
    progress: Progress
    best_checkpoint: BestCheckpoint | None
    rollouts: int
    tokens: Tokens
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    links: dict[str, str]


class Queue(BaseModel):
    """Where a queued run stands."""

    position: int
    """How many queued runs are older."""
    reason: str
    """Why it waits, in words."""


class Parent(BaseModel):
    """The run and the step that a run was forked from."""

    run_id: str
    step: int


class RunOut(RunBrief):
    """A run with its figures: the last 200 iterations, the baseline's and the last evaluations."""

    queue: Queue | None = None
    """None unless it is queued."""
    wait_reason: str | None = None
    """Why a paused run is paused, or what a running one waits for (its engine, a disk that is full)."""
    parent: Parent | None = None
    """None unless it was forked, and for as long as its parent is there."""
    attempts: int = 0
    """How often a worker took it since something of it was last finished."""
    cancel_requested: bool
    request: dict[str, Json]
    iterations: list[IterationFigures]
    evaluations: list[EvaluationOut]
    summary: dict[str, Json] | None
    webhooks: dict[str, int]
    """Deliveries by state."""
    cost: RunCost = RunCost()
    results_path: str = ""
    results_error: str | None = None
    """Why the folder of results is not complete; the downloads are."""


class CheckpointOut(BaseModel):
    step: int
    iteration: int
    model: str | None
    """What the backend calls it: `project/name@step`, or an artifact of W&B."""
    success: float | None
    is_best: bool
    created_at: datetime
    deleted_at: datetime | None


class TrajectoryBrief(BaseModel):
    """A trajectory in a list: everything but messages, tools and explanations."""

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
    score: float | None
    reward: float | None
    advantage: float | None
    success: bool | None
    error: str | None
    turns: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    started_at: datetime


class TrajectoryOut(TrajectoryBrief):
    """A trajectory, whole."""

    messages: list[Json]
    tools: list[Json]
    score_explanation: str | None
    score_parts: dict[str, float]
    reward_parts: dict[str, float]


class Email(BaseModel):
    """What sales_email writes. Plain text: a page that shows it must escape it."""

    subject: str
    body: str
    citations: list[str]


class AskOut(BaseModel):
    """An answer, and where to see how it came about."""

    question: str | None
    """None where the task is none."""
    answer: str | None
    """Of an email, its body."""
    source_ids: list[str]
    success: bool
    """Whether the agent gave an answer; a question without a reference has no right and wrong."""
    email: Email | None = None
    trajectory_id: str
    model: str
    step: int | None


class InvokeOut(BaseModel):
    """The seed's form of an answer."""

    question: str
    answer: str | None
    source_ids: list[str]
    success: bool
