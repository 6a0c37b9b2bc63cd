"""Bodies of the requests and responses about tasks that agents fetch."""

from datetime import datetime

from pydantic import ConfigDict, Field

from learnloop_service.app.schemas.base import RequestBody, ResponseModel
from learnloop_service.environment.json_type import Json


class ClaimRequest(RequestBody):
    """Who asks for work, and how long it may wait for some."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"worker": "gpu-box-1", "wait_s": 20}]})

    run_id: str | None = Field(default=None, min_length=1, max_length=26)
    """Run whose tasks are claimed. Default: all of the caller's project."""
    worker: str = Field(default="agent", min_length=1, max_length=200, pattern=r"^[^\x00]+$")
    """Your own name for who claims, for messages."""
    wait_s: float = Field(default=0, ge=0, le=30)
    """Seconds to wait for a task if there is none."""
    lease_s: float = Field(default=30, ge=1, le=3_600)
    """Seconds after which the task is given to another worker, unless a heartbeat comes."""


class TaskSession(ResponseModel):
    """The session that the agent works with."""

    id: str
    """Id of the session."""
    base_url: str
    """Base URL for OpenAI's clients."""
    api_key: str
    """The session's own key. It names the session also at plain `/v1`, and ends when the task is claimed again."""
    model: str
    """Name of the model."""


class ClaimOut(ResponseModel):
    """A task, for one attempt at it."""

    session: TaskSession
    """What the agent is given to work with."""
    task: dict[str, Json]
    """The scenario's task."""
    prompt: dict[str, str] = Field(default_factory=dict)
    """The texts that the agent brings to its model, by part; empty if it keeps its own. The outcome counts only if they
    are in its first request."""
    scenario_id: str
    """Id of the scenario."""
    split: str
    """`train`, `validation` or `test`."""
    run_id: str | None
    """Id of the run or evaluation that waits for the outcome."""
    iteration: int
    """Iteration of the run."""
    max_turns: int
    """Maximum number of requests to the model in this attempt."""
    attempt: int
    """Number of the session's attempt that this claim began, from 1. Heartbeats, releases and outcomes name it."""
    deadline: datetime
    """The outcome counts until then."""
    renew_by: datetime
    """Time before which no other worker is given the task; each heartbeat renews it."""


class HeartbeatRequest(RequestBody):
    """A sign of life of whoever works on a task."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"attempt": 1}]})

    attempt: int = Field(ge=1, lt=2**31)
    """The `attempt` of the claim."""
    lease_s: float = Field(default=30, ge=1, le=3_600)
    """Seconds from now after which the task is given to another worker."""


class HeartbeatOut(ResponseModel):
    """The renewed lease."""

    renew_by: datetime
    """Time before which no other worker is given the task."""


class ReleaseRequest(RequestBody):
    """Gives a task back: another worker is given it immediately, as a new attempt."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"attempt": 1, "reason": "the mail server is away"}]})

    attempt: int = Field(ge=1, lt=2**31)
    """The `attempt` of the claim."""
    reason: str | None = Field(default=None, max_length=10_000)
    """Why it cannot be done here. After three reasons, or lost claims, the task has no outcome. Default: the worker
    stops, which does not count."""
