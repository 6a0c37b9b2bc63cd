"""What a judge is: it compares the rollouts of one scenario, its candidates, and scores each.

A judge that cannot tell says so with a Score without a value. That is never a zero: the learn loop
leaves the rollout out and counts it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import httpx

from learnloop_service.environment.base import REPORTED_REWARD, Json, Outcome, Scenario
from learnloop_service.judges.prices import Price


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a judge sees of one rollout. `messages` are in OpenAI's form, in order."""

    id: str
    outcome: Outcome
    messages: Sequence[Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class Score:
    """A verdict in [0, 1], or None with the reason why there is none. `parts` explain the value."""

    value: float | None
    explanation: str
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a score lies in [0, 1], not {self.value}")


@dataclass(frozen=True, slots=True)
class JudgeCall:
    """What one verdict of a judge model cost. A verdict that was in the cache has `cached` and no tokens."""

    judge: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None: the model's price is unknown."""
    requests: int
    """To the model, repairs and retries included."""
    seconds: float
    cached: bool = False
    error: str | None = None
    """Why there is no verdict; None if there is one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One Score per candidate, in their order, and what it cost."""

    scores: Sequence[Score]
    calls: Sequence[JudgeCall] = ()


class Judge(Protocol):
    """Scores the candidates of one scenario. Safe for many groups at the same time."""

    name: str

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement: ...


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """What a judge first asks a language model about some candidates. `messages` are in OpenAI's form."""

    judge: str
    model: str
    """The judge model as PROVIDER/MODEL."""
    messages: Sequence[Mapping[str, Json]]


@runtime_checkable
class AskingJudge(Judge, Protocol):
    """A judge that asks a language model."""

    def questions(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Sequence[JudgeQuestion]:
        """The questions with which `judge` begins, unless it remembers the verdicts; none about candidates that it
        judges without the model."""


@runtime_checkable
class SelectiveJudge(Judge, Protocol):
    """A judge that can only score rollouts that have something certain."""

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        """Why it scores no rollout of this scenario with such an outcome; None if it can."""


def lacking(judge: Judge, scenario: Scenario, outcome: Outcome) -> str | None:
    """Why the judge scores no rollout of this scenario with such an outcome; None if it can, or does not say."""
    is_shown = outcome.get(REPORTED_REWARD) is None
    return judge.lacks(scenario, outcome) if is_shown and isinstance(judge, SelectiveJudge) else None


async def checked(judge: Judge, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
    """The judge's verdicts. Those whose reward is reported it is not shown. Raises what it raises, and ValueError if it
    does not score every candidate."""
    asked = [candidate for candidate in candidates if candidate.outcome.get(REPORTED_REWARD) is None]
    judgement = await judge.judge(scenario, asked) if asked else Judgement([])
    if len(judgement.scores) != len(asked):
        raise ValueError(f"it gave {len(judgement.scores)} scores for {len(asked)} candidates")
    scores = iter(judgement.scores)
    return Judgement(
        [_reported(candidate) or next(scores) for candidate in candidates],
        judgement.calls,
    )


def _reported(candidate: Candidate) -> Score | None:
    """The verdict that a reported reward stands for: the reward itself, as far as it lies in [0, 1]."""
    if (reward := candidate.outcome.get(REPORTED_REWARD)) is None:
        return None
    if not math.isfinite(reward):
        return Score(None, f"the reported reward is {reward}")
    return Score(min(max(reward, 0.0), 1.0), f"a reward of {reward:g} was reported")


def take_no_settings(name: str, config: Mapping[str, Json]) -> None:
    """For a judge without settings. Raises ValueError if the config has some."""
    if config:
        raise ValueError(f"the judge {name} has no settings, not {', '.join(sorted(config))}")


class VerdictCache(Protocol):
    """Verdicts by the hash of everything that decides them. Never raises: an unreachable cache has nothing."""

    async def get(self, key: str) -> Json | None: ...

    async def put(self, key: str, value: Json) -> None: ...


SIMULATOR = "market simulator"
"""The name of invented feedback wherever its figures are shown."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The feedback on one email that was sent."""

    trajectory_id: str
    citations: frozenset[str]
    online: float | None
    """The highest outcome so far, in [0, 1]; None if it is not known to have been sent."""
    wins: float
    losses: float
    """Of human preferences, each weighted by its confidence in (0, 1]."""
    simulated: bool = False
    """At least a part was invented by the market simulator."""


class RateLimit(Protocol):
    """How often a judge model may be asked, by all who ask it. Never raises."""

    async def turn(self, model: str, tokens: int) -> None:
        """Wait until a request to the model of about that many tokens may be sent."""

    async def used(self, model: str, more_tokens: int) -> None:
        """The request took that many tokens more than announced; fewer if the number is negative."""


class FeedbackSource(Protocol):
    """The feedback there is on emails of the run, and of other runs on the same graph."""

    async def evidence(self) -> Sequence[Evidence]: ...


class NoCache:
    """Forgets everything."""

    async def get(self, key: str) -> Json | None:
        return None

    async def put(self, key: str, value: Json) -> None:
        return None


class NoRateLimit:
    """As often as one likes."""

    async def turn(self, model: str, tokens: int) -> None:
        return None

    async def used(self, model: str, more_tokens: int) -> None:
        return None


class NoFeedback:
    """There is no feedback."""

    async def evidence(self) -> Sequence[Evidence]:
        return ()


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A language model that is asked, and how it is reached. Its key is sent to its address and nowhere else."""

    name: str
    """PROVIDER/MODEL: `openai/gpt-4.1-mini`."""
    base_url: str
    """Where its server speaks OpenAI's chat completions, without a slash at the end."""
    api_key: str | None = field(repr=False)
    transport: Callable[[], httpx.AsyncBaseTransport] = field(repr=False)
    """Makes the transport of one request. It connects to no address that requests must not reach."""
    price: Price | None = None
    """None: unknown."""
    concurrency: int = 8
    """Requests that run at the same time."""
    rate: RateLimit = field(default_factory=NoRateLimit, repr=False)
    not_taken: set[str] = field(default_factory=set, compare=False, repr=False)
    """Fields of requests that it turned out not to take."""

    @property
    def id(self) -> str:
        """As its server calls it."""
        return self.name.partition("/")[2]


class UnknownModel(ValueError):
    """There is no model of that name; the message lists those that there are."""


class Models(Protocol):
    """The language models that may be asked."""

    def model(self, name: str | None) -> JudgeModel:
        """The model of that name; None: the first one. Raises UnknownModel."""


class NoModels:
    """There are none."""

    def model(self, name: str | None) -> JudgeModel:
        raise UnknownModel("there is no model to ask")


@dataclass(frozen=True, slots=True)
class JudgeServices:
    """What judges may use besides their config."""

    rubric: str = ""
    """The environment's."""
    models: Models = field(default_factory=NoModels)
    cache: VerdictCache = field(default_factory=NoCache)
    feedback: FeedbackSource = field(default_factory=NoFeedback)
