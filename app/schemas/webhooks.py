"""Bodies of the requests and responses about webhooks."""

from datetime import datetime
from typing import Self

from pydantic import Field, model_validator

from app.domain.delivery_state import DeliveryState
from app.schemas.base import Name, RequestBody, ResponseModel
from app.schemas.run_request import WebhookEvents, WebhookUrl

MAX_OVERLAP_HOURS = 72


class EndpointRequest(RequestBody):
    """A webhook endpoint to create, for one run or for all runs of a project."""

    url: WebhookUrl
    """http or https. The address is checked now and before every request."""
    events: WebhookEvents = Field(default_factory=list)
    """Event types to send. Empty: all."""
    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    """Send the events of this run only."""
    project: Name | None = None
    """Send the events of this project. Default: the project of the API key, else that of the service."""

    @model_validator(mode="after")
    def _of_one_thing(self) -> Self:
        if self.run_id is not None and self.project is not None:
            raise ValueError("give either run_id or project: the endpoint of a run belongs to the project of the run")
        return self


class EndpointChange(RequestBody):
    """Changes to a webhook endpoint. Omitted fields stay as they are."""

    url: WebhookUrl | None = None
    events: WebhookEvents | None = None
    """Event types to send. Empty: all."""
    enabled: bool | None = None
    """While an endpoint is disabled, waiting deliveries are not sent and no new ones are queued."""


class RotateRequest(RequestBody):
    """How to rotate a secret."""

    overlap_hours: float = Field(default=24, ge=0, le=MAX_OVERLAP_HOURS)
    """For this long messages carry the signatures of both the new and the old secret."""


class ReplayRequest(RequestBody):
    """Which events of a run to send again."""

    run_id: str = Field(min_length=1, max_length=64)
    after_seq: int = Field(default=0, ge=0, lt=2**63)
    """Send the events whose `seq` is greater than this."""


class EndpointOut(ResponseModel):
    """A webhook endpoint."""

    id: str
    project: str | None
    """Null for all projects, which is so for the endpoint of the setting FRONTEND_URL only."""
    run_id: str | None
    """Null for all runs of the project."""
    url: str
    events: list[str]
    """Event types that are sent. Empty: all."""
    signed: bool
    """Whether messages are signed. Only an endpoint from the settings can be without a secret."""
    previous_secret_until: datetime | None
    """Until this time messages also carry a signature of the previous secret."""
    enabled: bool
    disabled_at: datetime | None
    disabled_reason: str | None
    created_at: datetime


class EndpointCreated(EndpointOut):
    """A webhook endpoint with its secret."""

    secret: str
    """Signs the messages (Standard Webhooks). Shown only once."""


class TestResult(ResponseModel):
    """The result of a test message."""

    delivered: bool
    status: int | None
    """HTTP status of the response."""
    error: str | None
    """Why it was not delivered."""
    seconds: float


class DeliveryBrief(ResponseModel):
    """A message to a webhook endpoint. Its `id` is the `webhook-id` header of every attempt to send it."""

    id: str
    endpoint_id: str | None
    """Null if the endpoint was deleted."""
    run_id: str
    event_seq: int | None
    event_type: str | None
    iteration: int | None
    url: str
    state: DeliveryState
    """failed: all attempts failed; it is only sent again on request."""
    attempts: int
    """Number of attempts since it was last queued."""
    next_attempt_at: datetime
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class AttemptOut(ResponseModel):
    """One attempt to send a delivery."""

    number: int
    started_at: datetime
    seconds: float | None
    """Null while the attempt is in progress, or if the service stopped during it."""
    status: int | None
    """HTTP status of the response."""
    error: str | None


class DeliveryOut(DeliveryBrief):
    """A delivery with its body and all attempts to send it."""

    body: str
    """The body, byte for byte as sent."""
    tries: list[AttemptOut]
    """All attempts, oldest first."""


class Replayed(ResponseModel):
    """The events that were queued again."""

    queued: int
    """Number of events queued."""
    next_after_seq: int | None
    """Pass it as `after_seq` to continue; null if all events are queued."""
