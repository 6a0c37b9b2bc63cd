"""Bodies of the requests and responses about webhooks."""

from datetime import datetime
from typing import Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.app.schemas.base import Name, RequestBody, ResponseModel
from learnloop_service.app.schemas.run_request import WebhookEvents, WebhookUrl

MAX_OVERLAP_HOURS = 72


class EndpointRequest(RequestBody):
    """A webhook endpoint to create, for one run or for all runs of a project."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"url": "https://crm.example/hooks", "events": ["run.completed", "run.failed"]}]
        }
    )

    url: WebhookUrl
    """Where to send the events: an http or https URL. Its address is checked now and before every request."""
    events: WebhookEvents = Field(default_factory=list)
    """Event types to send. Empty: all."""
    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    """Send the events of this run only. Default: those of all runs of the project."""
    project: Name | None = None
    """Send the events of this project. Default: the project of the API key, else that of the service."""

    @model_validator(mode="after")
    def _of_one_thing(self) -> Self:
        if self.run_id is not None and self.project is not None:
            raise ValueError("give either run_id or project: the endpoint of a run belongs to the project of the run")
        return self


class EndpointChange(RequestBody):
    """Changes to a webhook endpoint. Omitted fields stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"events": ["run.completed"], "enabled": True}]})

    url: WebhookUrl | None = None
    """New URL, http or https."""
    events: WebhookEvents | None = None
    """New list of event types to send. Empty: all."""
    enabled: bool | None = None
    """Whether events are sent. While an endpoint is disabled, waiting deliveries are not sent and no new ones
    are queued."""


class RotateRequest(RequestBody):
    """How to rotate a secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_hours": 24}]})

    overlap_hours: float = Field(default=24, ge=0, le=MAX_OVERLAP_HOURS)
    """Number of hours for which messages carry the signatures of both the new and the old secret."""


class ReplayRequest(RequestBody):
    """Which events of a run to send again."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"run_id": "01KAJ3M7F5T2V8Q9X0C4D6E8GA", "after_seq": 12}]}
    )

    run_id: str = Field(min_length=1, max_length=64)
    """Id of the run whose events to send."""
    after_seq: int = Field(default=0, ge=0, lt=2**63)
    """Send the events whose `seq` is greater than this."""


class EndpointOut(ResponseModel):
    """A webhook endpoint."""

    id: str
    """Id of the endpoint."""
    project: str | None
    """Project whose events are sent. Null for all projects, which only the endpoint of the setting FRONTEND_URL has."""
    run_id: str | None
    """Id of the run whose events are sent. Null for all runs of the project."""
    url: str
    """Where the events are sent."""
    events: list[str]
    """Event types that are sent. Empty: all."""
    signed: bool
    """Whether messages are signed. Only an endpoint from the settings can be without a secret."""
    previous_secret_until: datetime | None
    """Time until which messages also carry a signature of the previous secret; null without one."""
    enabled: bool
    """Whether events are sent."""
    disabled_at: datetime | None
    """When it was disabled; null if it is enabled."""
    disabled_reason: str | None
    """Why it was disabled; null if it is enabled."""
    created_at: datetime
    """When it was created."""


class EndpointCreated(EndpointOut):
    """A webhook endpoint with its secret."""

    secret: str
    """Signs the messages (Standard Webhooks). Shown only once."""


class TestResult(ResponseModel):
    """The result of a test message."""

    delivered: bool
    """Whether the receiver accepted the message."""
    status: int | None
    """HTTP status of the receiver's response; null if there was none."""
    error: str | None
    """Why it was not delivered; null if it was."""
    seconds: float
    """Duration in seconds."""


class DeliveryBrief(ResponseModel):
    """A message to a webhook endpoint. Its `id` is the `webhook-id` header of every attempt to send it."""

    id: str
    """Id of the delivery, and of the message: the `webhook-id` header of every attempt."""
    endpoint_id: str | None
    """Id of the endpoint. Null if the endpoint was deleted."""
    run_id: str
    """Id of the run whose event it is; empty for an event of an evaluation or a release."""
    evaluation_id: str | None
    """Id of the evaluation whose event it is; null for other events."""
    release_id: str | None
    """Id of the release whose event it is; null for other events."""
    event_seq: int | None
    """Sequence number of the event within the run, evaluation or release."""
    event_type: str | None
    """Type of the event."""
    iteration: int | None
    """Iteration that the event belongs to; null if it belongs to none."""
    url: str
    """Where it is sent."""
    state: DeliveryState
    """`pending`: waiting for its next attempt. `delivered`: the receiver accepted it. `failed`: all attempts failed,
    and it is only sent again on request."""
    attempts: int
    """Number of attempts since it was last queued."""
    next_attempt_at: datetime
    """When it is sent next, while it is pending."""
    last_error: str | None
    """Why the last attempt failed; null if none did."""
    created_at: datetime
    """When it was queued."""
    delivered_at: datetime | None
    """When the receiver accepted it; null before."""

    @field_validator("run_id", mode="before")
    @classmethod
    def _of_no_run(cls, run_id: str | None) -> str:
        return run_id or ""


class AttemptOut(ResponseModel):
    """One attempt to send a delivery."""

    number: int
    """Number of the attempt, from 1."""
    started_at: datetime
    """When it began."""
    seconds: float | None
    """Duration in seconds. Null while the attempt is in progress, or if the service stopped during it."""
    status: int | None
    """HTTP status of the receiver's response; null if there was none."""
    error: str | None
    """Why the attempt failed; null if it did not."""


class DeliveryOut(DeliveryBrief):
    """A delivery with its body and all attempts to send it."""

    body: str
    """The body of the message, byte for byte as sent."""
    tries: list[AttemptOut]
    """All attempts, oldest first."""


class Replayed(ResponseModel):
    """The events that were queued again."""

    queued: int
    """Number of events queued."""
    next_after_seq: int | None
    """Pass it as `after_seq` to continue; null if all events are queued."""
