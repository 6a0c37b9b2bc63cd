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
    """The cost of one verdict of a judge model. A verdict from the cache has `cached` and no tokens."""

    judge: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None: the model's price is unknown."""
    requests: int
    """Number of requests to the model, repairs and retries included."""
    seconds: float
    cached: bool = False
    error: str | None = None
    """Why there is no verdict; None if there is one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One Score per candidate, in their order, and the calls to judge models that they took."""

    scores: Sequence[Score]
    calls: Sequence[JudgeCall] = ()


class Judge(Protocol):
    """Scores the candidates of one scenario. Safe for many groups at the same time."""

    name: str

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement: ...


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """A judge's first question to a language model about some candidates. `messages` are in OpenAI's form."""

    judge: str
    model: str
    """The judge model as PROVIDER/MODEL."""
    messages: Sequence[Mapping[str, Json]]


@runtime_checkable
class AskingJudge(Judge, Protocol):
    """A judge that asks a language model."""

    def questions(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Sequence[JudgeQuestion]:
        """Return the questions with which `judge` begins when the cache has no verdicts.

        Candidates that it judges without the model are in none of them.
        """


@runtime_checkable
class SelectiveJudge(Judge, Protocol):
    """A judge that can score only rollouts with certain properties."""

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        """Return why it cannot score a rollout of this scenario with this outcome; None if it can."""


def lacking(judge: Judge, scenario: Scenario, outcome: Outcome) -> str | None:
    """Return why the judge cannot score a rollout of this scenario with this outcome; None if it can, or does not say.

    A rollout with a reported reward needs no judge.
    """
    is_unreported = outcome.get(REPORTED_REWARD) is None
    return judge.lacks(scenario, outcome) if is_unreported and isinstance(judge, SelectiveJudge) else None


async def checked(judge: Judge, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
    """Return the judge's verdicts. A reported reward is the candidate's score; the judge sees only the others.

    Raises whatever the judge raises, and ValueError if it does not score every candidate.
    """
    unreported = [candidate for candidate in candidates if candidate.outcome.get(REPORTED_REWARD) is None]
    judgement = await judge.judge(scenario, unreported) if unreported else Judgement([])
    if len(judgement.scores) != len(unreported):
        raise ValueError(f"it gave {len(judgement.scores)} scores for {len(unreported)} candidates")
    scores = iter(judgement.scores)
    return Judgement(
        [_reported(candidate) or next(scores) for candidate in candidates],
        judgement.calls,
    )


def _reported(candidate: Candidate) -> Score | None:
    """Return a reported reward as a score, clipped to [0, 1]; None if none was reported."""
    if (reward := candidate.outcome.get(REPORTED_REWARD)) is None:
        return None
    if not math.isfinite(reward):
        return Score(None, f"the reported reward is {reward}")
    return Score(min(max(reward, 0.0), 1.0), f"a reward of {reward:g} was reported")


def take_no_settings(name: str, config: Mapping[str, Json]) -> None:
    """Check the config of a judge without settings. Raises ValueError if it has any."""
    if config:
        raise ValueError(f"the judge {name} has no settings, not {', '.join(sorted(config))}")


class VerdictCache(Protocol):
    """Verdicts by the hash of everything that determines them. Never raises: an unreachable cache is an empty one."""

    async def get(self, key: str) -> Json | None: ...

    async def put(self, key: str, value: Json) -> None: ...


SIMULATOR = "market simulator"
"""The name of invented feedback wherever its figures are shown."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The feedback on one email."""

    trajectory_id: str
    citations: frozenset[str]
    online: float | None
    """The highest outcome so far, in [0, 1]; None if it is not known to have been sent."""
    wins: float
    losses: float
    """`wins` and `losses` count human preferences, each weighted by its confidence in (0, 1]."""
    simulated: bool = False
    """Whether the market simulator invented at least a part of it."""


class RateLimit(Protocol):
    """Limits the requests to a judge model, over everyone who asks it. Never raises."""

    async def turn(self, model: str, tokens: int) -> None:
        """Wait until a request of about that many tokens can be sent to the model."""

    async def used(self, model: str, more_tokens: int) -> None:
        """Record that the request took that many tokens more than announced; fewer if the number is negative."""


class FeedbackSource(Protocol):
    """Feedback on emails of the run, and of other runs on the same graph."""

    async def evidence(self) -> Sequence[Evidence]: ...


class NoCache:
    """A cache that keeps nothing."""

    async def get(self, key: str) -> Json | None:
        return None

    async def put(self, key: str, value: Json) -> None:
        return None


class NoRateLimit:
    """Lets every request through without a wait."""

    async def turn(self, model: str, tokens: int) -> None:
        return None

    async def used(self, model: str, more_tokens: int) -> None:
        return None


class NoFeedback:
    """A source without any feedback."""

    async def evidence(self) -> Sequence[Evidence]:
        return ()


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A language model and how to reach it. Its key is sent to its address and nowhere else."""

    name: str
    """PROVIDER/MODEL: `openai/gpt-4.1-mini`."""
    base_url: str
    """Address of its server's OpenAI-compatible API, without a slash at the end."""
    api_key: str | None = field(repr=False)
    transport: Callable[[], httpx.AsyncBaseTransport] = field(repr=False)
    """Makes the transport of one request, which refuses to connect to forbidden addresses."""
    price: Price | None = None
    """The price of its tokens; None if it is unknown."""
    concurrency: int = 8
    """Most requests in flight at the same time."""
    rate: RateLimit = field(default_factory=NoRateLimit, repr=False)
    not_taken: set[str] = field(default_factory=set, compare=False, repr=False)
    """Request fields that its server has refused."""

    @property
    def id(self) -> str:
        """The name by which its server knows it."""
        return self.name.partition("/")[2]


class UnknownModel(ValueError):
    """No model has that name; the message lists the models that exist."""


class Models(Protocol):
    """The language models that judges can ask."""

    def model(self, name: str | None) -> JudgeModel:
        """Return the model of that name, or the first one if the name is None. Raises UnknownModel."""


class NoModels:
    """Models of a service that has none."""

    def model(self, name: str | None) -> JudgeModel:
        raise UnknownModel("there is no model to ask")


@dataclass(frozen=True, slots=True)
class JudgeServices:
    """What a judge's builder gets besides its config."""

    rubric: str = ""
    """The environment's rubric; empty if it has none."""
    models: Models = field(default_factory=NoModels)
    cache: VerdictCache = field(default_factory=NoCache)
    feedback: FeedbackSource = field(default_factory=NoFeedback)
