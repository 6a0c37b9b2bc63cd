"""Bodies of the requests and responses about feedback."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, Discriminator, Field, Tag, model_validator

from app.schemas.base import RequestBody, ResponseModel

MAX_EVENTS = 1_000
"""In one request."""
FeedbackType = Literal[
    "sent",
    "opened",
    "replied",
    "call_booked",
    "opportunity",
    "closed_won",
    "thumbs_up",
    "thumbs_down",
    "preferred",
]
Source = Literal["api", "simulator"]
_OPINIONS = {"thumbs_up", "thumbs_down", "preferred"}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _rfc3339(value: Any) -> Any:
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        return value
    raise ValueError("give the time as RFC 3339 with a time zone, such as 2026-03-14T09:30:00Z")


OccurredAt = Annotated[AwareDatetime, BeforeValidator(_rfc3339), Field(ge=datetime(2000, 1, 1, tzinfo=UTC))]


class FeedbackEvent(RequestBody):
    """What happened to an email, or what someone thinks of it.

    Name the email by its `trajectory_id`, or by `run_id` and `iteration`: the sample email of that iteration. In
    environments without emails, answers accept thumbs and preferences.
    """

    event_id: str = Field(min_length=1, max_length=200)
    """The sender's id of the event. Sending the same event again has no effect."""
    type: FeedbackType
    trajectory_id: str | None = Field(default=None, min_length=1, max_length=200)
    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    iteration: int | None = Field(default=None, ge=0, lt=2**31)
    over: str | None = Field(default=None, min_length=1, max_length=200)
    """Trajectory of the other email, which was not preferred. Only for `preferred`."""
    confidence: float = Field(default=1.0, gt=0, le=1)
    """Weight of a thumb or a preference."""
    occurred_at: OccurredAt | None = None
    """When it happened. Default: now."""

    @model_validator(mode="after")
    def _names_one_email(self) -> Self:
        by_run = {self.run_id is not None, self.iteration is not None}
        if len(by_run) != 1 or by_run == {self.trajectory_id is not None}:
            raise ValueError("give either trajectory_id, or both run_id and iteration")
        return self

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if (self.type == "preferred") != (self.over is not None):
            raise ValueError(
                "`over` (the other email's trajectory) is required for `preferred` and not allowed for other types"
            )
        if "confidence" in self.model_fields_set and self.type not in _OPINIONS:
            raise ValueError(f"confidence is only allowed for {', '.join(sorted(_OPINIONS))}")
        return self


class FeedbackRequest(FeedbackEvent):
    """One feedback event."""

    source: Source = "api"
    """`simulator` marks an invented event; figures that use it say so."""


class FeedbackBatch(RequestBody):
    """Several feedback events. Valid ones are stored even if others are rejected."""

    events: list[FeedbackEvent] = Field(min_length=1, max_length=MAX_EVENTS)
    source: Source = "api"


def _form(body: Any) -> str:
    return "batch" if isinstance(body, dict) and "events" in body else "event"


FeedbackBody = Annotated[
    Annotated[FeedbackRequest, Tag("event")] | Annotated[FeedbackBatch, Tag("batch")], Discriminator(_form)
]


class RejectedEvent(ResponseModel):
    """An event of a batch that was rejected."""

    index: int
    """Position in the batch, from 0."""
    event_id: str
    detail: str
    """Why it was rejected."""


class FeedbackTaken(ResponseModel):
    """How many events were stored."""

    accepted: int
    duplicates: int
    """Events that were already stored, with the same content."""
    rejected: list[RejectedEvent]
    links: dict[str, str]
    """By run id, where its feedback is listed."""


class FeedbackOut(ResponseModel):
    """One stored feedback event."""

    event_id: str
    type: FeedbackType
    trajectory_id: str
    over: str | None
    """Trajectory of the other email, of a preference."""
    iteration: int | None
    """Iteration of the trajectory."""
    confidence: float
    source: Source
    occurred_at: datetime
    received_at: datetime


class EmailFeedbackOut(ResponseModel):
    """All feedback on one email so far."""

    trajectory_id: str
    kind: str
    """Kind of its trajectory: showcase (the sample email of an iteration), train, evaluation or ask."""
    iteration: int | None
    online: float | None
    """Value in [0, 1] of its best outcome, from opened to closed_won; null if it is not known to have been sent."""
    wins: float
    """Thumbs and preferences in its favour, weighted by their confidence."""
    losses: float
    """Thumbs and preferences against it, weighted by their confidence."""
    simulated: bool
    """Whether at least one of its events comes from the market simulator."""
