"""Bodies of the requests and responses about improvements."""

from collections.abc import Iterable
from datetime import datetime
from math import fsum
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, field_validator

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.domain.names import MODEL_PATTERN, NAME_PATTERN
from learnloop_service.app.schemas.base import Name, RequestBody, RequestPart, ResponseModel, StartedOut
from learnloop_service.app.schemas.evaluations import FEWEST_TASKS
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.prompts import PromptToStore, PromptUsed
from learnloop_service.app.schemas.run_request import (
    AgentChoice,
    BudgetChoice,
    EnvironmentChoice,
    JudgeChoice,
    ModelChoice,
    PromptName,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.training.types import HELD_OUT_SEED, RunConfig

_DEFAULTS = RunConfig()
TriedRung = Literal["prompt", "model", "imitation", "grpo"]
_OWN_FIELDS = ("environment", "agent", "judge", "prompt", "model", "warm_start", "seed", "budget", "webhooks")


class ImitationChoice(RequestPart):
    """Where the demonstrations of imitation come from."""

    sources: list[Literal["oracle", "own"]] = Field(default=["oracle", "own"], max_length=2)
    """`oracle`: the environment shows how its tasks are done. `own`: the agent's best rollouts of the pilot. The first
    one that there is, is used."""


class ChampionChoice(RequestPart):
    """Who gets what was accepted."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(alias="as")
    """Name in the improvement's project."""
    how: Literal["promote", "release"] = "promote"
    """`promote`: all who ask for that name get it immediately. `release`: a share of its users gets it first."""


class ImprovementRequest(RequestBody):
    """An agent to make better by the cheapest step that is good enough. Every field has a default."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "environment": {"name": "email_search"},
                    "target": 0.9,
                    "wait_minutes": 30,
                    "budget": {"max_minutes": 30},
                }
            ]
        }
    )

    environment: EnvironmentChoice = Field(default_factory=EnvironmentChoice)
    """What the agent acts in."""
    agent: AgentChoice | None = None
    """The agent that makes the rollouts, if it is to own its loop. Default: the built-in loop."""
    judge: JudgeChoice | None = None
    """The judge. Default: the environment's own. `feedback` judges no candidate that users have not met."""
    model: ModelChoice = Field(default_factory=ModelChoice)
    """The model to train, as in a learn-loop. Its `base_model` is what the agent is as it is, unless `from` names
    another one."""
    from_: Annotated[str, Field(min_length=1, max_length=300)] | None = Field(default=None, alias="from")
    """What the agent is as it is: a promoted name, `PROJECT/NAME@STEP`, a run's id, a base model, or a model of the
    operator's list, which is not trained. Default: `model.base_model`."""
    prompt: PromptName | None = None
    """The prompt that the agent has as it is. Default: that of the run that trained `from`, or the environment's texts.
    """
    target: float | None = Field(default=None, gt=0, le=1)
    """Success on validation tasks at which to stop. Null: until everything was tried."""
    budget: BudgetChoice | None = None
    """Limits of all its evaluations and runs together. Null: none."""
    rungs: list[TriedRung] = Field(default=["prompt", "model", "imitation", "grpo"], max_length=4)
    """Kinds of change that may be tried. They are always tried in the same order: prompt, model, imitation, GRPO."""
    prompts: list[PromptName] = Field(default_factory=list, max_length=100)
    """Stored prompts to try, in this order."""
    wait_minutes: float = Field(default=0, ge=0, le=10_080)
    """Minutes to wait for prompts of a person or a program (`POST /improvements/{id}/candidates`), before the other
    kinds of change."""
    models: list[Annotated[str, Field(pattern=MODEL_PATTERN, max_length=256)]] = Field(
        default_factory=list, max_length=8
    )
    """Models of the operator's list to try, in this order."""
    imitation: ImitationChoice = Field(default_factory=ImitationChoice)
    """Where demonstrations come from."""
    run: dict[str, Json] = Field(default_factory=dict)
    """Fields of the learn-loop that GRPO is done by, such as `iterations`."""
    validation: int | None = Field(default=None, ge=FEWEST_TASKS, le=1_000)
    """Number of validation tasks, which decide. Default: 64, and 128 if the model is on a GPU; at most what there is.
    """
    test: int | None = Field(default=None, ge=0, le=1_000)
    """Number of test tasks for the final figures. Default: 64, and 152 on a GPU; at most what there is."""
    seed: int = Field(default=_DEFAULTS.seed, ge=0, lt=2**31)
    """Seed of training tasks and of runs. Held-out tasks have the seed that learn-loops have by default."""
    max_turns: int | None = Field(default=None, ge=1, le=100)
    """Maximum number of turns per rollout. Default: the environment's."""
    max_completion_tokens: int = Field(default=_DEFAULTS.max_completion_tokens, ge=1, le=32_768)
    """Maximum number of tokens per turn."""
    rollout_timeout_s: float = Field(default=_DEFAULTS.rollout_timeout_s, ge=1, le=86_400)
    """Seconds after which a rollout counts as failed."""
    concurrency: int = Field(default=16, ge=1, le=256)
    """Maximum number of simultaneous rollouts of an evaluation."""
    answers: int | None = Field(default=None, ge=1, le=10**12)
    """Number of answers that are expected later. A listed model is not compared if these would cost more than training.
    """
    promote: ChampionChoice | None = None
    """Who gets the best candidate when the target is reached or all was tried. Default: no one. A prompt that quotes
    training tasks, and a listed model, are left to a person."""
    dry_run: bool = False
    """Store nothing, and only say what it would do, show and take."""
    allow: list[Annotated[str, Field(min_length=1, max_length=300)]] = Field(default_factory=list, max_length=100)
    """Addresses, hosts and numbers that new prompts may name although the present one does not."""
    project: Name | None = None
    """Project of the improvement, its evaluations, runs and models. Default: that of the API key, else the service's.
    """

    @field_validator("run")
    @classmethod
    def _leaves_out(cls, run: dict[str, Json]) -> dict[str, Json]:
        if given := sorted(set(run).intersection(_OWN_FIELDS)):
            raise ValueError(f"{given[0]} is the improvement's: give it outside of run, or leave it out")
        return run

    @property
    def held_out_seed(self) -> int:
        """Seed of validation and test tasks."""
        return HELD_OUT_SEED


class PlannedRungOut(ResponseModel):
    """A kind of change that an improvement would try."""

    rung: Rung
    """Kind of change; `as_it_is` stands for measuring the agent, the pilot and the test tasks."""
    candidates: int
    """Candidates that are known beforehand."""
    minutes: tuple[float, float] | None
    """Range of minutes; null if that is unknown."""
    usd: tuple[float, float] | None
    """Range of US dollars; null if no price is known."""
    source: str | None
    """What the range is from."""
    gain: str | None
    """What is known of the success that it leads to; null if nothing is."""
    why_not: str | None
    """Why it would be skipped; null otherwise."""


class ImprovementPlan(ResponseModel):
    """What an improvement would do, show and take."""

    request: dict[str, Json]
    """The request with the numbers of tasks."""
    can_show: list[str]
    """What the validation tasks can show, in sentences."""
    smallest_gain: float | None
    """Gain in success that they show with 80% probability; null if there is none."""
    rungs: list[PlannedRungOut]
    """What it would try, in order."""


class Proposal(PromptToStore):
    """A prompt to try."""

    why: str = Field(default="", max_length=2_000)
    """Why it should help, in a sentence."""


class EvidenceOut(ResponseModel):
    """What the candidate and the champion of that time did on the same tasks."""

    won: int
    """Tasks on which the candidate had more success."""
    lost: int
    """Tasks on which it had less."""
    tasks: int
    """Number of tasks that both did."""


class ProposalOut(ResponseModel):
    """A proposed prompt, with what proposers can know: nothing of held-out tasks but whether it was accepted."""

    number: int
    """Its number in the improvement."""
    state: CandidateState
    """Where it is in its life."""
    reason: str | None
    """Why it was not accepted; null otherwise."""
    prompt: PromptUsed | None
    """The prompt as it is stored."""
    quotes: bool
    """Whether it quotes training rollouts, so that a person should read it before it is promoted."""
    screening: EvidenceOut | None
    """Comparison with the champion on training tasks; null before it."""


class ContinueImprovement(RequestBody):
    """How to go on with an improvement that has ended."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"target": 0.97}]})

    target: float | None = Field(default=None, gt=0, le=1)
    """The new target. Null: as before."""
    budget: BudgetChoice | None = None
    """The new limits, for all that it used and will use. Null: as before."""


class PriceOut(ResponseModel):
    """What was used."""

    minutes: float
    """Minutes that workers spent."""
    tokens: int
    """Prompt and completion tokens."""
    usd: float | None
    """US dollars for listed models, judges and, if it has a price, the machine; null if no price is known."""

    @classmethod
    def total(cls, prices: Iterable[Self]) -> Self:
        """Return the sum. Only known prices count."""
        prices = list(prices)
        priced = [price.usd for price in prices if price.usd is not None]
        minutes, tokens = fsum(price.minutes for price in prices), sum(price.tokens for price in prices)
        return cls(minutes=minutes, tokens=tokens, usd=fsum(priced) if priced else None)


class AnswerPriceOut(ResponseModel):
    """What an answer takes, as measured."""

    tokens: float | None
    """Prompt and completion tokens per answer."""
    seconds: float | None
    """Median of the seconds."""
    usd: float | None
    """US dollars; null for models of this service, and if the price is unknown."""


class CandidateOut(ResponseModel):
    """Something that was tried, or will be."""

    number: int
    """Its number in the improvement; 0 is the agent as it is."""
    rung: Rung
    """Kind of change."""
    state: CandidateState
    """Where it is in its life."""
    reason: str | None
    """Why it was refused, skipped or failed, as a sentence; null otherwise."""
    author: str
    """Who proposed it."""
    why: str
    """The proposer's reason."""
    model: str
    """Its model."""
    listed: bool
    """Whether the model is on the operator's list, so that it can be neither trained nor promoted."""
    prompt: PromptUsed | None
    """Its prompt; null for the environment's own texts."""
    only_by_person: bool
    """Whether its prompt quotes training tasks, so that a person should read it before it is promoted."""
    success: IntervalOut | None
    """Success on validation tasks; null before they were done. The same tasks choose, so expect less on others."""
    test: IntervalOut | None
    """Success on test tasks; null before the end, and for candidates that were not champion."""
    screening: EvidenceOut | None
    """Comparison with the champion on training tasks; null without one."""
    evidence: EvidenceOut | None
    """Comparison with the champion on validation tasks; null without one."""
    error_share: float | None
    """Bound on the probability of accepting it although it is not better; null for what is not compared."""
    price: PriceOut
    """What trying it took."""
    answer: AnswerPriceOut | None
    """What an answer of it takes; null before it was measured."""
    run_id: str | None
    """The run that trained it."""
    screening_id: str | None
    """The evaluation on training tasks."""
    gate_id: str | None
    """The evaluation on validation tasks."""
    created_at: datetime
    """When it was proposed."""
    decided_at: datetime | None
    """When it was decided."""


class PilotOut(ResponseModel):
    """What the agent does on training tasks as it is, each attempted several times."""

    evaluation_id: str
    """The evaluation."""
    tasks: int
    """Number of tasks."""
    samples: int
    """Attempts at each task."""
    success: float
    """Share of attempts that succeeded."""
    solved_once: float
    """Share of tasks that were solved at least once: what imitation of its own rollouts can learn from."""
    groups_differ: float
    """Share of tasks whose attempts have different rewards: what GRPO can learn from."""
    inconsistent: float
    """Share of tasks on which two attempts differ in success, which makes small gains harder to show."""


class PatternOut(ResponseModel):
    """The largest pattern of failures, in numbers of validation tasks."""

    sentence: str
    """The pattern in words."""
    tasks: int
    """Tasks that have it."""
    failures: int
    """Tasks that fail by any pattern."""
    rollouts: list[str]
    """Ids of some of its rollouts."""


class RungForecastOut(ResponseModel):
    """What a kind of change is expected to take, before it is paid for."""

    rung: Rung
    """Kind of change."""
    minutes: tuple[float, float]
    """Range of minutes."""
    usd: tuple[float, float] | None
    """Range of US dollars; null if no price is known."""
    source: str
    """What the range is from."""
    gain: str | None
    """What is known of the success that it leads to, such as "4 runs: 81 to 97%"; null if nothing is."""


class ImprovementBrief(StartedOut):
    """An improvement, as listed."""

    id: str
    """Id of the improvement."""
    project: str
    """Project that it belongs to."""
    status: ImprovementStatus
    """Whether it is going on, or how it ended."""
    reason: str | None
    """Why it ended, or what it waits for."""
    environment: str
    """The environment."""
    target: float | None
    """Success at which it stops."""
    champion: int
    """Number of the best candidate."""
    candidates: int
    """Number of candidates."""
    actor: str
    """Who asked for it."""
    created_at: datetime
    """When it was accepted."""
    finished_at: datetime | None
    """When it ended."""


class ImprovementOut(ImprovementBrief):
    """An improvement with its candidates."""

    request: dict[str, Json]
    """The request with the numbers of tasks."""
    tried: list[CandidateOut]
    """All candidates by number."""
    pilot: PilotOut | None
    """The pilot; null before it was made."""
    can_show: list[str]
    """What the validation tasks can show, in sentences."""
    smallest_gain: float | None
    """Gain in success that they show with 80% probability; null if there is none."""
    pattern: PatternOut | None
    """The largest pattern of the champion's failures on validation tasks; null without failures, and before its end."""
    forecast: list[RungForecastOut]
    """What the kinds of change that were not tried yet are expected to take."""
    price: PriceOut
    """What all of it took."""
    confirmed: bool | None
    """Whether the test tasks reach the target as well; null without a target or test tasks, and before the end."""
    test_looks: int
    """How often test tasks were looked at; more than once after `continue`."""
    job: str | None
    """Path of the evaluation or run in progress; null without one."""
    waits_until: datetime | None
    """Until when it waits for proposals of prompts."""
    sentence: str | None
    """What came of it, in a sentence or two; null before its end."""
