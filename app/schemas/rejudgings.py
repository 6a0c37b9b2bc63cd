"""Bodies of the requests and responses about rejudgings: stored rollouts of a run, scored by another judge."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from learnloop_service.app.schemas.base import RequestBody, RequestPart, ResponseModel
from learnloop_service.app.schemas.evaluations import EvaluationBrief, EvaluationBudget
from learnloop_service.app.schemas.run_request import Judges
from learnloop_service.environment.json_type import Json


class IterationRange(RequestPart):
    """Iterations, both ends included."""

    first: int = Field(default=0, ge=0, lt=2**31)
    """The first iteration; 0 is the baseline."""
    last: int | None = Field(default=None, ge=0, lt=2**31)
    """The last iteration. Default: the last one that is saved."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.last is not None and self.last < self.first:
            raise ValueError("the last iteration is before the first")
        return self


class RejudgeRequest(RequestBody):
    """By what judge, and which of a run's rollouts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"judge": {"name": "correctness"}, "repeats": 3}]})

    judge: Judges | None = None
    """The judge, or several whose scores are averaged. Default: that of the run, with today's code."""
    environment: dict[str, Json] = Field(default_factory=dict)
    """Settings of the environment that decide the reward and nothing that the agent saw. Default: those of the run."""
    iterations: IterationRange = IterationRange()
    """Which iterations. Default: all that are saved."""
    kinds: list[Literal["train", "evaluation"]] = Field(default=["train"], min_length=1, max_length=2)
    """Which rollouts: those that were trained on, held-out ones, or both."""
    repeats: int = Field(default=1, ge=1, le=8)
    """How often each rollout is judged. From 2 on the report has the judge's own noise."""
    budget: EvaluationBudget | None = None
    """Limits of what it may use. It pauses before a call that could exceed one of them. Null: none."""
    dry_run: bool = False
    """Whether to judge nothing, and only say what it would judge and cost."""


class ExpectedCost(ResponseModel):
    """What judging would cost, from calls of the same judge model in the project."""

    usd: float | None
    """Expected US dollars; null if nothing is known."""
    low: float | None
    """Lower end of the range that 90% of such sums are in."""
    high: float | None
    """Upper end of that range."""
    reason: str
    """What it is based on, or why nothing is known."""


class RejudgingAccepted(ResponseModel):
    """A rejudging that was queued, or would be."""

    evaluation_id: str | None
    """Id of the evaluation that judges; null for a dry run. `GET /evaluations/ID` shows its report."""
    groups: int
    """Number of groups of rollouts that are judged together."""
    rollouts: int
    """Number of rollouts."""
    verdicts: int
    """Number of verdicts: groups times repeats."""
    cost: ExpectedCost
    """What it is expected to cost."""
    warnings: list[str]
    """Reasons why its judge may fail."""


class RejudgingBrief(EvaluationBrief):
    """A rejudging, as listed. It is an evaluation: `GET /evaluations/ID` shows its report."""

    judge: str
    """Name of the judge."""
    repeats: int
    """How often each rollout is judged."""
    text: str | None
    """What its report says, in a sentence or two; null until it has completed."""
