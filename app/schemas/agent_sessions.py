"""Bodies of the requests and responses about sessions of agents."""

import json
import math
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from learnloop.outcome import MAX_FACTS, MAX_REWARD
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.schemas.base import Name, RequestBody, RequestPart, ResponseModel
from learnloop_service.app.schemas.prompts import PromptUsed
from learnloop_service.environment.json_type import Json

_MOST_PARTS = 100
Text = Annotated[str, Field(min_length=1, max_length=2_000)]
Reward = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD)]


class AgentSessionLimits(RequestPart):
    """Bounds of a session."""

    max_calls: int | None = Field(default=None, ge=1, le=100_000)
    """Maximum number of requests of one start of the agent. Default: the service's `LEARNLOOP_SESSION_MAX_CALLS`,
    usually 500."""
    max_tokens: int | None = Field(default=None, ge=1, le=2_000_000_000)
    """Maximum number of tokens of all prompts and replies that are sampled. Those of calls under way are estimated, and
    a call waits while these could use up the rest. Default: no limit."""


class AgentSessionRequest(RequestBody):
    """A session to open for an agent that owns its loop."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "learnloop/tiny", "ttl_s": 600}]})

    model: str = Field(min_length=1, max_length=300)
    """Name of the model: a base model, a run id, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name. The session
    stays with the checkpoint that it means now."""
    ttl_s: float = Field(default=3_600, gt=0, le=2_592_000)
    """Seconds until the session expires, unless it ends before."""
    limits: AgentSessionLimits = Field(default_factory=AgentSessionLimits)
    """Bounds of the session."""
    restart: Literal["auto", "explicit"] = "auto"
    """`auto`: an agent that repeats the very first request of the session, once that was answered, was started again,
    and gets the recorded answers. `explicit`: only `POST /sessions/{id}/restart` means that."""
    project: Name | None = None
    """Project that the session belongs to. Default: that of the API key, else that of the model or the service."""
    metadata: dict[str, Json] = Field(default_factory=dict, max_length=50)
    """Anything you want to find in the session again."""
    user: str | None = Field(default=None, min_length=1, max_length=256)
    """Key of the user for whom the agent works; only its hash is stored. It decides which checkpoint the session gets
    while a release of a promoted name is live. Default: the header `Learnloop-User`."""
    train: bool | None = None
    """Whether the session can become a training task (docs/schedules.md), and explore where its name does. Default:
    only in the projects of `LEARNLOOP_TRAIN_ON_PROJECTS`."""


class SessionPrompt(PromptUsed):
    """The prompt that the agent of a session is to bring."""

    parts: dict[str, str]
    """The texts by part, with their placeholders."""


class AgentSessionAccess(ResponseModel):
    """What an agent needs to work in a session."""

    id: str
    """Id of the session."""
    base_url: str
    """Base URL for the agent's client. With the key of the session, `/v1` of the service does as well."""
    api_key: str
    """Key of the session. Shown only once: the service stores only its hash."""
    attempt: int
    """Which start of the agent this is, from 1."""
    expires_at: datetime
    """When the session expires, unless it ends before."""
    prompt: SessionPrompt | None = None
    """The prompt of the model, which the agent is to bring; null for texts of its own."""


class OutcomeRequest(RequestBody):
    """How a session ended. Give a reward, parts, or an output; without any of them a reason."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reward": 0.75, "attempt": 1}]})

    reward: Reward | None = None
    """How good it was: a number from -1e9 to 1e9."""
    parts: dict[str, Reward] | None = Field(default=None, max_length=_MOST_PARTS)
    """Named parts of how good it was, which add up to a number in the same range."""
    output: str | dict[str, Json] | None = None
    """What the agent achieved, for a judge to read."""
    reason: Text | None = None
    """Why there is no reward. A session without one counts for nothing, which is not zero."""
    facts: dict[Text, bool] | None = Field(default=None, max_length=MAX_FACTS)
    """Whether milestones of the task were reached, in the order in which a success reaches them: they name the patterns
    of `GET /failures`."""
    attempt: int | None = Field(default=None, ge=1, lt=2**31)
    """The attempt that has this outcome, as the claim, the posted task or `POST /sessions` gave it. Default: that of
    the session's key. With an API key it is required once a session was restarted whose `restart` is `explicit`."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.reward is None and not self.parts and self.output is None and self.reason is None:
            raise ValueError("give a reward, parts or an output, or a reason why there is none")
        if self.parts and abs(total := math.fsum(self.parts.values())) > MAX_REWARD:
            raise ValueError(f"the parts add up to {total:g}, which is beyond {MAX_REWARD:g}")
        try:
            json.dumps(self.output, allow_nan=False)
        except ValueError:
            raise ValueError("output may not hold NaN or infinite numbers") from None
        return self


class AgentSessionOutcome(ResponseModel):
    """How a session ended."""

    reward: float | None = None
    """How good it was."""
    parts: dict[str, float] | None = None
    """Named parts of how good it was."""
    output: str | dict[str, Json] | None = None
    """What the agent achieved."""
    reason: str | None = None
    """Why there is no reward."""
    facts: Annotated[dict[str, bool], BeforeValidator(dict)] | None = None
    """Whether milestones of the task were reached, in the agent's order."""


class AgentSessionOpinions(ResponseModel):
    """What people thought of a session, summed up."""

    events: int
    """Number of opinions."""
    wins: float
    """Thumbs and preferences in its favour, weighted by their confidence."""
    losses: float
    """Thumbs and preferences against it, weighted by their confidence."""
    simulated: bool
    """Whether at least one of them was invented by a simulator."""


class LearnedFrom(ResponseModel):
    """What a run on served answers made of a session."""

    run_id: str
    """The newest run that froze it, or else the newest one that learned from its promoted name."""
    step: int | None = None
    """The step that was trained on it; null for none."""
    outcome: float | None = None
    """Its outcome when its window was over, in [0, 1]; null if it was not frozen."""
    expected: float | None = None
    """What was expected of it before; null if it was not frozen."""
    why_not: str | None = None
    """Why no step was trained on it, such as `with an open window` or `of users with enough others`; else null."""


class AgentSessionOut(ResponseModel):
    """A session of an agent."""

    id: str
    """Id of the session."""
    status: AgentSessionState
    """`open`; `ended`, with an outcome; or `expired`: it did not end in time, and counts for nothing."""
    project: str
    """Project that it belongs to."""
    model: str
    """Name of the model, as it was given."""
    checkpoint: str
    """The checkpoint that answers, as its server knows it."""
    step: int | None
    """Step of the checkpoint; null for a base model."""
    prompt: PromptUsed | None
    """The prompt of the model; null for none."""
    backend: str
    """Name of the backend that has the model."""
    attempt: int
    """Which start of the agent this is, from 1."""
    calls: int
    """Number of calls of the model, of all attempts."""
    prompt_tokens: int
    """Tokens of all prompts that were sampled."""
    completion_tokens: int
    """Tokens of all replies that were sampled."""
    reward: float | None
    """How good it was; null while that is not known, or if there is no reward."""
    outcome: AgentSessionOutcome | None
    """How it ended; null if it has not, or has expired."""
    feedback: AgentSessionOpinions | None
    """What people thought of it, which `POST /feedback` takes; null for nothing."""
    max_calls: int | None
    """Maximum number of requests of one start of the agent; null for no limit."""
    max_tokens: int | None
    """Maximum number of tokens; null for no limit."""
    warnings: list[str]
    """Parts of the agent's requests that had no effect: hints, and hosted tools that the model was not offered."""
    restart: Literal["auto", "explicit"]
    """What means that the agent was started again."""
    metadata: dict[str, Json]
    """What whoever opened it wants to find again."""
    train: bool
    """Whether its user consents to training on it."""
    explored: bool | None
    """Whether it is sampled at temperature 1 whatever its client asks, because its promoted name explores; null if no
    coin was tossed for it."""
    learned: LearnedFrom | None = None
    """What a run on served answers made of it; null for none, and in lists."""
    run_id: str | None
    """The run that it is a rollout of; null for none."""
    iteration: int | None
    """The run's iteration that the rollout belongs to; null for none."""
    opened_at: datetime
    """When it was opened."""
    expires_at: datetime
    """When it expires, or expired, unless it ends before."""
    ended_at: datetime | None
    """When it ended or expired; null while it is open."""


class AgentSessionCallOut(ResponseModel):
    """A call of the model in a session."""

    number: int
    """From 1, in the order in which they began."""
    digest: str
    """SHA-256 of the request in its canonical form."""
    occurrence: int
    """How many requests of the same digest came before it in an attempt."""
    protocol: str
    """Protocol of the client that made it first: `chat`, `responses` or `messages`."""
    used: bool
    """Whether the last attempt made this request: others are not trained."""
    messages: list[dict[str, Json]]
    """What the model was shown, in the form of OpenAI's chat completions."""
    tools: list[dict[str, Json]]
    """Functions that the model could call."""
    parameters: dict[str, Json]
    """How the reply was asked for."""
    seed: int
    """Seed of the sampling."""
    completion: dict[str, Json] | None
    """The answer, with token ids and log-probabilities as far as the server returns them; null: not answered yet. The
    engine's are the model's own: before temperature, `top_p`, `top_k`, `min_p` and grammar."""
    begun_at: datetime
    """When it began."""
    answered_at: datetime | None
    """When its answer was durable; null: not answered yet."""
