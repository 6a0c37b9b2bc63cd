"""Bodies of the requests that start, resume and fork runs. Unknown fields are refused; every size is bounded."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, WithJsonSchema, model_validator

from app.domain.event_types import EventType
from app.schemas.base import Json, Name, RequestBody, RequestPart
from training.types import RunConfig

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


class NoSignalChoice(RequestPart):
    """What to do with a run that learns nothing: no group of an iteration has rewards that differ, so that nothing is
    trained. In any case such an iteration has an event `iteration.no_signal` and is named in the run's `warnings`."""

    action: Literal["continue", "pause", "fail"] = "continue"
    """continue: only warn. pause: pause the run. fail: end it as failed."""
    after: int = Field(default=3, ge=1, le=10_000)
    """After this many such iterations in a row."""


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
    on_no_signal: NoSignalChoice = Field(default_factory=NoSignalChoice)
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
