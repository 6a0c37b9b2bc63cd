"""Bodies of the requests and responses about evaluations."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.names import MODEL_PATTERN
from learnloop_service.app.schemas.base import RequestBody, RequestPart, ResponseModel, StartedOut
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.prompts import PromptUsed
from learnloop_service.app.schemas.rejudge_report import RejudgeReport
from learnloop_service.app.schemas.run_request import AgentChoice, EnvironmentChoice, JudgeChoice, PromptName
from learnloop_service.app.schemas.trajectories import Split
from learnloop_service.app.schemas.what_if_report import WhatIfReport
from learnloop_service.environment.json_type import Json
from learnloop_service.training.types import RunConfig

_DEFAULTS = RunConfig()
MAX_ROLLOUTS = 20_000
FEWEST_TASKS = 8
"""Fewest scenarios of a gate. Even eight wins of eight are only just enough for an error of 5%."""


class ModelToEvaluate(RequestPart):
    """A model: one of this service by `model`, or any other by `prompted`; with only a `prompt`, the service's base
    model."""

    model: str | None = Field(default=None, min_length=1, max_length=300)
    """A model of this service: a base model, `PROJECT/NAME@STEP`, `PROJECT/NAME` (what is now its newest checkpoint), a
    promoted name, or a run's id (its best checkpoint)."""
    prompted: Annotated[str, Field(pattern=MODEL_PATTERN, max_length=256)] | None = None
    """A model that is only prompted: one of the operator's list (LEARNLOOP_MODELS) or, where no API keys are required,
    PROVIDER/MODEL such as `openai/gpt-4.1-mini`."""
    label: str | None = Field(default=None, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")
    """Its name in the report. Default: the name of the model, and of its prompt if one is given."""
    prompt: PromptName | None = None
    """A stored prompt: `NAME`, `NAME@VERSION` or its SHA-256. Default: that of the promoted name, else of the run that
    trained the model. Null: the environment's own texts."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.model is not None and self.prompted is not None:
            raise ValueError("give either model or prompted")
        if self.model is None and self.prompted is None and "prompt" not in self.model_fields_set:
            raise ValueError("give model or prompted; or a prompt, for the base model of the service")
        return self


class EvaluationBudget(RequestPart):
    """Limits of an evaluation; null means no limit."""

    max_usd: float | None = Field(default=None, gt=0, le=1e9)
    """Limit in US dollars for prompted models and judge calls, as far as their price is known. Null: no limit."""
    max_minutes: float | None = Field(default=None, gt=0, le=1e9)
    """Limit in minutes that workers spend on it, not counting time in the queue or paused. Null: no limit."""
    max_tokens: int | None = Field(default=None, ge=1, le=10**15)
    """Limit for the prompt and completion tokens of the models and the judge together. Null: no limit."""


class ResumeEvaluation(RequestBody):
    """How to resume an evaluation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"budget": {"max_usd": 5}}]})

    budget: EvaluationBudget | None = None
    """New limits. Limits that are not given stay as they are; null removes a limit."""


class GateChoice(RequestPart):
    """A decision on two models that may be looked at any time (docs/prompts.md#the-gate)."""

    error: float = Field(default=0.05, gt=0, le=0.5)
    """Bound on the probability of accepting a model that is not better."""


class EvaluationRequest(RequestBody):
    """Which models to compare, on which scenarios. The first model is the one that differences are from."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "models": [{"model": "learnloop/tiny", "label": "base"}, {"prompted": "openai/gpt-4.1-mini"}],
                    "scenarios": 64,
                }
            ]
        }
    )

    run_id: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[^\x00]+$")
    """A run whose environment, judge, seed and limits of rollouts are the defaults here. Default: none."""
    models: list[ModelToEvaluate] = Field(default_factory=list, max_length=8)
    """The models. Default, with `run_id`: the base model of the run, and its best checkpoint."""
    environment: EnvironmentChoice | None = None
    """What the models act in. Default: that of the run, else `email_search` with synthetic inboxes."""
    judge: JudgeChoice | None = None
    """The judge. Default: that of the run, else the environment's own."""
    agent: AgentChoice | None = None
    """The agent that makes the rollouts, if it is to own its loop. Default: that of the run, else the built-in loop."""
    split: Split = "test"
    """Which scenarios: held-out ones or, with `train`, those that a run with the same seed draws first to train on."""
    scenarios: int = Field(default=_DEFAULTS.evaluation.test_scenarios, ge=1, le=1_000)
    """Number of scenarios; if there are fewer, each is used once."""
    samples: int = Field(default=1, ge=1, le=32)
    """Number of rollouts of each scenario per model."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature; 0 is greedy."""
    gate: GateChoice | None = None
    """Decides whether the second of two models is better than the first one, and ends as soon as that is decided.
    Default: none; all scenarios are made."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed of the scenarios, of sampling and of the intervals. Default: the run's for scenarios of this split, or 0."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    """Maximum number of turns per rollout. Default: that of the run, else the environment's."""
    max_completion_tokens: int | None = Field(default=None, ge=1, le=32_768)
    """Maximum number of tokens per turn. Default: that of the run, else 256."""
    rollout_timeout_s: float = Field(default=_DEFAULTS.rollout_timeout_s, ge=1, le=86_400)
    """Seconds after which a rollout counts as failed."""
    concurrency: int = Field(default=16, ge=1, le=256)
    """Maximum number of simultaneous rollouts."""
    budget: EvaluationBudget | None = None
    """Limits of what the evaluation may use. It pauses before a call that could exceed one of them. Null: none."""

    @model_validator(mode="after")
    def _has_models(self) -> Self:
        if not self.models and self.run_id is None:
            raise ValueError("give models, or run_id")
        if self.gate is not None and len(self.models) not in (0, 2):
            raise ValueError(f"a gate compares two models, and there are {len(self.models)}")
        if self.gate is not None and self.scenarios < FEWEST_TASKS:
            raise ValueError(f"a gate needs at least {FEWEST_TASKS} scenarios: with fewer nothing can be shown")
        if (count := max(2, len(self.models)) * self.scenarios * self.samples) > MAX_ROLLOUTS:
            raise ValueError(f"{count} rollouts are more than {MAX_ROLLOUTS}: models x scenarios x samples")
        return self


class Differences(ResponseModel):
    """How far a model is from the first one on the same scenarios; null for the first one, and where there is no
    figure."""

    success: IntervalOut | None
    """Difference of the success."""
    reward: IntervalOut | None
    """Difference of the reward."""
    sources: IntervalOut | None
    """Difference of the share of right sources."""
    turns: IntervalOut | None
    """Difference of the turns per rollout."""


class EvaluatedModel(ResponseModel):
    """The figures of one model."""

    label: str
    """Its name in this report."""
    kind: Literal["trained", "prompted"]
    """`trained`: a model of this service, also a base model; `prompted`: any other."""
    model: str
    """Name of the model."""
    step: int | None
    """Step of its checkpoint; null for a base model and for a prompted one."""
    prompt: PromptUsed | None = None
    """What it was prompted with; null for the environment's own texts."""
    success: IntervalOut | None
    """Success; null if no scenario could be compared."""
    reward: IntervalOut | None
    """Mean reward."""
    sources: IntervalOut | None
    """Share of rollouts with exactly the right sources; null in environments without sources."""
    turns: IntervalOut | None
    """Turns per rollout."""
    difference: Differences
    """From the first model."""
    rollouts: int
    """Number of rollouts."""
    unscored: int
    """Rollouts that the judge could not score; they count for neither success nor reward."""
    prompt_tokens: float | None
    """Mean number of prompt tokens per rollout."""
    completion_tokens: float | None
    """Mean number of completion tokens per rollout."""
    seconds_p50: float | None
    """Median duration of a rollout in seconds."""
    seconds_p95: float | None
    """Duration in seconds that 95% of the rollouts stay below."""
    errors: dict[str, int]
    """Why rollouts were no success, by kind: `wrong_answer`, `wrong_sources`, `gave_up`, `out_of_turns`, `malformed`,
    `full_context` (the conversation filled the model's context), `failed`, `unscored`."""
    cost_usd: float | None
    """What a prompted model's tokens cost in US dollars; null if the price is unknown, and for models of this
    service."""
    error: str | None = None
    """Why it has no figures: all its rollouts failed before it had answered once. Null if it has figures. The
    evaluation has failed then, and resuming it makes these rollouts again."""
    unreachable: bool = False
    """Whether it has none because its prompt did not reach the model."""


class MethodOut(ResponseModel):
    """How the intervals were made."""

    name: str
    """Its name."""
    draws: int
    """Number of draws."""
    level: float
    """Level of the intervals."""


class GateOut(ResponseModel):
    """Whether the second model was shown to be better than the first one, and by what."""

    decision: Literal["better", "not_better"]
    """`better`: the probability of this is at most `error` if it is not better. `not_better`: it was not shown to be
    better, which does not show that it is worse."""
    error: float
    """Bound on the probability of saying `better` of a model that is not."""
    tasks: int
    """Number of scenarios that were compared."""
    won: int
    """Scenarios on which the second model had more success."""
    lost: int
    """Scenarios on which it had less."""
    log_wealth: float
    """Natural logarithm of the wealth of the bets against "not better"."""


class ReportOut(ResponseModel):
    """The figures of an evaluation. They are recomputable from its trajectories."""

    scenarios: int
    """Number of scenarios."""
    split: Split | None = None
    """Their split; null in reports of earlier versions."""
    samples: int
    """Rollouts of each scenario per model."""
    compared: dict[str, int]
    """Number of scenarios for which every model that has figures has this one, by figure."""
    method: MethodOut
    """How the intervals were made: name, number of draws and level."""
    models: list[EvaluatedModel]
    """The models, in the order of the request."""
    trial: "TrialOut | None" = None
    """What the trial decided; null for an evaluation that decides nothing, and for a trial that failed."""
    gate: GateOut | None = None
    """What the gate decided; null for an evaluation without one, and for one whose models did not both have figures."""
    what_if: WhatIfReport | None = None
    """What continuations of a recorded rollout came to; null for any other evaluation."""
    rejudge: RejudgeReport | None = None
    """What other scores would have changed in a run; null for any other evaluation."""


class TrialOut(ResponseModel):
    """What the trial of a challenger decided, and why."""

    decision: Literal["promote", "refuse", "undecided", "overtaken"]
    """`promote`: it is better, and was promoted. `refuse`: that it is better by the margin is ruled out. `undecided`:
    the scenarios did not suffice; ask for more, or for others with another seed. `overtaken`: it is better than the
    champion was, but the name was given to another checkpoint meanwhile, or has a live release."""
    pairs: int
    """Number of scenarios that both attempted."""
    log_wealth_better: float
    """Natural logarithm of the wealth of the bet against "not better"; from log(1 / alpha) on it is promoted."""
    log_wealth_not_by_margin: float
    """The same of the bet against "better by the margin"; from log(1 / alpha) on it is refused."""
    alpha: float
    """Bound of the probability of each of both errors."""
    margin: float
    """The difference in success that is worth finding."""
    look_every: int
    """Number of scenarios between two looks."""


class EvaluationBrief(StartedOut):
    """An evaluation, as listed."""

    evaluation_id: str
    """Id of the evaluation."""
    status: EvaluationStatus
    """Its status."""
    done: int
    """Number of rollouts that were judged."""
    total: int
    """Number of rollouts in all."""
    models: list[str]
    """Labels of the models."""
    error: str | None
    """Why it failed; null if it did not."""
    created_at: datetime
    """When it was accepted."""
    started_at: datetime | None
    """When a worker first took it; null if none has."""
    finished_at: datetime | None
    """When it ended; null if it has not."""


class EvaluationAccepted(EvaluationBrief):
    """An evaluation that was accepted."""

    warnings: list[str] = Field(default_factory=list)
    """Reasons why it may fail for some of its models, or why its judge may fail."""


class EvaluationEventOut(ResponseModel):
    """One event of an evaluation. What `data` contains depends on the type; see docs/events.md."""

    seq: int
    """Sequence number within the evaluation, from 1 without gaps."""
    type: str
    """What happened, such as `evaluation.completed`."""
    version: int
    """Version of the format of `data` for this type."""
    evaluation_id: str
    """Id of the evaluation."""
    actor: str
    """Who caused it: an API key, a worker, or the service."""
    occurred_at: datetime
    """When it happened, by the clock of the database."""
    data: dict[str, Json]
    """What happened in detail. Its members depend on the type, and new ones can be added."""


class PublishedOut(ResponseModel):
    """Whether an evaluation is in W&B Weave."""

    state: Literal["due", "published", "failed"]
    """`due`: it is published soon, or tried again."""
    urls: dict[str, str | None] | None = None
    """Addresses of the Weave evaluations by the model's label; null until it is published."""
    error: str | None = None
    """Why the last attempt failed; null if none has."""


class EvaluationOut(EvaluationBrief):
    """An evaluation with all details."""

    request: dict[str, Json]
    """The request with all defaults filled in."""
    wait_reason: str | None
    """What it waits for, or why it is paused; null if it does not wait."""
    pruned: dict[str, datetime]
    """Which of its details were deleted because of their age, and when: `trajectories`, `events`."""
    judge_cost: dict[str, float | None]
    """What the judge's calls took: `requests`, `prompt_tokens`, `completion_tokens`, `usd` (null if a price is
    unknown). Empty for a judge without a model."""
    report: ReportOut | None
    """The figures; null until it has completed, or has failed for some of its models only."""
    weave: "PublishedOut | None"
    """What came of publishing it to W&B Weave; null if no project is configured."""
