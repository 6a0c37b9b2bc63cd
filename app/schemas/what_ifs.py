"""Bodies of the requests and responses about what-ifs: forks of a recorded rollout at a turn."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from learnloop_service.app.schemas.base import RequestBody, RequestPart, ResponseModel
from learnloop_service.app.schemas.evaluations import EvaluationBrief, EvaluationBudget, ModelToEvaluate
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.run_request import JudgeChoice

SEARCH_SAMPLES, SAMPLES = 16, 8
_MAX_CONTENT = 100_000


class MessageEdit(RequestPart):
    """One change of the recorded conversation: the new text of a message or of a tool result, or a message that the
    user adds at its end."""

    message: int | None = Field(default=None, ge=0, le=10_000)
    """Index of the message whose text is replaced, from 0, as in the trajectory's `messages`."""
    tool_result: str | None = Field(default=None, min_length=1, max_length=200)
    """Id of the tool call whose result is replaced. The model reads the new text; the world stays as it is."""
    content: str | None = Field(default=None, max_length=_MAX_CONTENT)
    """The new text of the message or of the tool result."""
    append: str | None = Field(default=None, min_length=1, max_length=_MAX_CONTENT)
    """Text of a message of the user that is added at the end of the conversation."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        places = [self.message is not None, self.tool_result is not None, self.append is not None]
        if sum(places) != 1 or (self.content is None) != (self.append is not None):
            raise ValueError("give message and content, tool_result and content, or append")
        return self


class WhatIfRequest(RequestBody):
    """The turn of a recorded rollout to continue from, what to change before it, and the models that continue."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"turn": 2, "samples": 8}, {"search": "bisect", "samples": 16}]}
    )

    turn: int | None = Field(default=None, ge=1, le=1_000)
    """The first turn that is sampled again, from 1. The turns before it are replayed. Give this or `search`."""
    search: Literal["bisect", "all"] | None = None
    """Look for the turn that decided the rollout: continue from the turns that halve what is left, or from all."""
    edit: MessageEdit | None = None
    """What is changed before the turn. Default: nothing. Only with `turn`."""
    models: list[ModelToEvaluate] = Field(default_factory=list, max_length=8)
    """The models that continue. Default: the checkpoint that made the rollout. Only that one with `search`."""
    samples: int | None = Field(default=None, ge=1, le=64)
    """Number of continuations by each model, before each turn. Default: 8, and 16 with `search`."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] | Literal["own"] | None = None
    """Seed of sampling. `own`: that of the rollout, which on a CPU gives the same rollout again; with one sample.
    Default: that of the run."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature. Default: that of the rollout, or of its run's training if it was greedy."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    """Maximum number of turns in all. Default: that of the rollout."""
    judge: JudgeChoice | None = None
    """The judge. Default: that of the rollout."""
    budget: EvaluationBudget | None = None
    """Limits of what it may use. It pauses before a call that could exceed one of them. Null: none."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.turn is None) == (self.search is None):
            raise ValueError("give either turn or search")
        if self.search is not None and (self.edit is not None or self.models or self.seed == "own"):
            raise ValueError("a search continues the rollout unedited, with its own model and fresh seeds")
        if self.seed == "own" and self.samples not in (None, 1):
            raise ValueError("the rollout has one seed of its own; ask for one sample")
        return self

    @property
    def count(self) -> int:
        """Number of continuations by each model, before each turn."""
        if self.samples is not None:
            return self.samples
        return 1 if self.seed == "own" else SEARCH_SAMPLES if self.search else SAMPLES


class TurnValue(ResponseModel):
    """The value of the state before a turn: how often continuations from there succeed."""

    turn: int
    """The turn, from 1."""
    count: int
    """Number of continuations from there."""
    success: IntervalOut
    """Share of successes with its 95% interval."""
    reward: float | None
    """Mean reward; null without a reward."""


class TurnCredit(ResponseModel):
    """How far a turn changed the chance of success."""

    turn: int
    """The turn, from 1."""
    points: IntervalOut
    """The value after the turn minus the value before it, in percentage points, with its 95% interval."""


class TurnValues(ResponseModel):
    """Which turn decided a rollout, by the continuations of all its unedited what-ifs by its own checkpoint."""

    trajectory_id: str
    """The rollout."""
    turns: int
    """Its number of turns."""
    success: bool | None
    """Its result, which counts as the value after its last turn."""
    values: list[TurnValue]
    """The values that are known."""
    credits: list[TurnCredit]
    """The credit of each turn whose value before and after it is known."""
    decisive: TurnCredit | None
    """The turn that decided it; null while that is undecided."""
    missing: int | None
    """How many more continuations before each of its two states would decide it at the present values; null if it is
    decided, or if that is not known."""
    missing_before: list[int] = Field(default_factory=list)
    """The turns before which `missing` more continuations are needed."""
    text: str
    """The same in a sentence."""


class WhatIfBrief(EvaluationBrief):
    """A what-if, as listed. It is an evaluation: `GET /evaluations/ID` shows its report."""

    turns: list[int]
    """The turns that are continued from."""
    search: Literal["bisect", "all"] | None
    """How the decisive turn is looked for; null if one turn is continued."""
    edited: bool
    """Whether the conversation was changed."""
