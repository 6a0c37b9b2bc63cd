"""Shapes of the requests and responses about webhooks."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from app.schemas.runs import Name, WebhookEvents, WebhookUrl, _Request

MAX_OVERLAP_HOURS = 72
DeliveryState = Literal["pending", "delivered", "failed"]


class EndpointRequest(_Request):
    """A new endpoint: of one run, or of all runs of a project (by default the service's)."""

    url: WebhookUrl
    events: WebhookEvents = Field(default_factory=list)
    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    project: Name | None = None

    @model_validator(mode="after")
    def _of_one_thing(self) -> Self:
        if self.run_id is not None and self.project is not None:
            raise ValueError("give either run_id or project: a run's endpoint is of the run's project")
        return self


class EndpointChange(_Request):
    """What is given changes, everything else stays. Disabled: what waits is not sent, and nothing new is queued."""

    url: WebhookUrl | None = None
    events: WebhookEvents | None = None
    enabled: bool | None = None


class RotateRequest(_Request):
    """How long the secret that is replaced still signs beside the new one."""

    overlap_hours: float = Field(default=24, ge=0, le=MAX_OVERLAP_HOURS)


class ReplayRequest(_Request):
    """Which events of a run's log are sent: those with a greater `seq`."""

    run_id: str = Field(min_length=1, max_length=64)
    after_seq: int = Field(default=0, ge=0, lt=2**63)


class EndpointOut(BaseModel):
    """Where events are sent."""

    id: str
    project: str | None
    """None: of every project. Only the endpoint of FRONTEND_URL is."""
    run_id: str | None
    url: str
    events: list[str]
    signed: bool
    previous_secret_until: datetime | None
    """Until then the secret before the last rotation signs too."""
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: str | None
    created_at: datetime


class EndpointCreated(EndpointOut):
    """With its secret, which is shown this once."""

    secret: str


class TestResult(BaseModel):
    """How a test message went; `error` is None if the receiver took it."""

    delivered: bool
    status: int | None
    error: str | None
    seconds: float


class DeliveryBrief(BaseModel):
    """A message to a receiver. Its `id` is the header `webhook-id` of every attempt."""

    id: str
    endpoint_id: str | None
    """None: the endpoint was deleted."""
    run_id: str
    event_seq: int | None
    event_type: str | None
    iteration: int | None
    url: str
    state: DeliveryState
    """failed: a dead letter, not tried again unless it is asked for."""
    attempts: int
    """Since it was last queued."""
    next_attempt_at: datetime
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class AttemptOut(BaseModel):
    """One try. Without `seconds` it was not finished: the service stopped, or it is under way."""

    number: int
    started_at: datetime
    seconds: float | None
    status: int | None
    error: str | None


class DeliveryOut(DeliveryBrief):
    """A delivery with what is sent, byte for byte, and every try."""

    body: str
    tries: list[AttemptOut]


class Replayed(BaseModel):
    """How many events were queued. Pass `next_after_seq` as `after_seq` for the next ones; None: those were all."""

    queued: int
    next_after_seq: int | None
