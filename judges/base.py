"""What a judge is: it compares the rollouts of one scenario, its candidates, and scores each.

A judge that cannot decide returns a Score without a value. That is never a zero: the learn loop leaves the rollout out
and counts it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from environment.base import REPORTED_REWARD, Json, Outcome, Scenario
from judges.prices import Price


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a judge sees of one rollout. `messages` are in OpenAI's format, in order."""

    id: str
    outcome: Outcome
    messages: Sequence[Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class Score:
    """A verdict in [0, 1], or None with the reason for having none. `parts` explain the value."""

    value: float | None
    explanation: str
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a score lies in [0, 1], not {self.value}")


@dataclass(frozen=True, slots=True)
class JudgeCall:
    """What one verdict of a judge model cost. A verdict from the cache has `cached` set and no tokens."""

    judge: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """Cost in US dollars; None if the model's price is unknown."""
    requests: int
    """Number of requests sent to the model, including repairs and retries."""
    seconds: float
    cached: bool = False
    error: str | None = None
    """Why there is no verdict; None if there is one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One Score per candidate, in the candidates' order, and what they cost."""

    scores: Sequence[Score]
    calls: Sequence[JudgeCall] = ()


class Judge(Protocol):
    """Scores the candidates of one scenario. Can judge many groups concurrently."""

    name: str

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement: ...


async def checked(judge: Judge, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
    """Return the judge's verdicts. Candidates whose reward was reported are not shown to the judge. Raises whatever the
    judge raises, and ValueError if it does not score every candidate."""
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
    """Return the score that stands for a reported reward (the reward clamped to [0, 1]); None if none was reported."""
    if (reward := candidate.outcome.get(REPORTED_REWARD)) is None:
        return None
    return Score(min(max(reward, 0.0), 1.0), f"a reward of {reward:g} was reported")


def take_no_settings(name: str, config: Mapping[str, Json]) -> None:
    """Raise ValueError if the config of a judge without settings has any."""
    if config:
        raise ValueError(f"the judge {name} has no settings, not {', '.join(sorted(config))}")


class VerdictCache(Protocol):
    """Cached verdicts, keyed by a hash of everything that decides them. Never raises: an unreachable cache counts as
    empty."""

    async def get(self, key: str) -> Json | None: ...

    async def put(self, key: str, value: Json) -> None: ...


SIMULATOR = "market simulator"
"""Label of invented feedback wherever its figures are shown."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Feedback on one email that was sent."""

    trajectory_id: str
    citations: frozenset[str]
    online: float | None
    """Value of the best outcome so far, in [0, 1]; None if the email is not known to have been sent."""
    wins: float
    losses: float
    """Human preferences against the email, each weighted by its confidence in (0, 1]."""
    simulated: bool = False
    """Whether the market simulator invented at least part of it."""


class RateLimit(Protocol):
    """Limit on how often a judge model is asked, shared by all callers. Never raises."""

    async def turn(self, model: str, tokens: int) -> None:
        """Wait until a request of about `tokens` tokens may be sent to the model."""

    async def used(self, model: str, more_tokens: int) -> None:
        """Report that the request used `more_tokens` more than announced; a negative number means fewer."""


class FeedbackSource(Protocol):
    """Feedback on emails of the run, and of other runs on the same graph."""

    async def evidence(self) -> Sequence[Evidence]: ...


class NoCache:
    """Cache that keeps nothing."""

    async def get(self, key: str) -> Json | None:
        return None

    async def put(self, key: str, value: Json) -> None:
        return None


class NoRateLimit:
    """Rate limit that never makes a caller wait."""

    async def turn(self, model: str, tokens: int) -> None:
        return None

    async def used(self, model: str, more_tokens: int) -> None:
        return None


class NoFeedback:
    """Source without any feedback."""

    async def evidence(self) -> Sequence[Evidence]:
        return ()


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A language model used as a judge, and how to reach it. Its key is sent only to its own address."""

    name: str
    """PROVIDER/MODEL, as in litellm's price list: `openai/gpt-4.1-mini`."""
    base_url: str
    """Base URL of its chat completions API, without a trailing slash."""
    api_key: str | None = field(repr=False)
    transport: Callable[[], httpx.AsyncBaseTransport] = field(repr=False)
    """Creates the transport of one request; it refuses addresses that requests must not reach."""
    price: Price | None = None
    """None if unknown."""
    concurrency: int = 8
    """Most concurrent requests."""
    rate: RateLimit = field(default_factory=NoRateLimit, repr=False)
    rejected_fields: set[str] = field(default_factory=set, compare=False, repr=False)
    """Request fields that the model has rejected."""

    @property
    def id(self) -> str:
        """The model's id on its server."""
        return self.name.partition("/")[2]


class UnknownModel(ValueError):
    """No model has that name; the message lists the available ones."""


class Models(Protocol):
    """The language models that judges can ask."""

    def model(self, name: str | None) -> JudgeModel:
        """Return the model with that name, or the first one for None. Raises UnknownModel."""


class NoModels:
    """An empty set of models."""

    def model(self, name: str | None) -> JudgeModel:
        raise UnknownModel("there is no model to ask")


@dataclass(frozen=True, slots=True)
class JudgeServices:
    """What a judge can use besides its config."""

    rubric: str = ""
    """The environment's rubric."""
    models: Models = field(default_factory=NoModels)
    cache: VerdictCache = field(default_factory=NoCache)
    feedback: FeedbackSource = field(default_factory=NoFeedback)
