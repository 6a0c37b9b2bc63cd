"""Shapes of feedback's requests and responses."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator

from app.schemas.runs import _Request

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
    raise ValueError("a time looks like 2026-03-14T09:30:00Z: RFC 3339 with a zone")


OccurredAt = Annotated[AwareDatetime, BeforeValidator(_rfc3339), Field(ge=datetime(2000, 1, 1, tzinfo=UTC))]


class FeedbackEvent(_Request):
    """What happened with an email, or what somebody thinks of it.

    The email is that of `trajectory_id`, or the one that the run `run_id` showed after `iteration`. Answers of
    environments that write no emails take thumbs and preferences, too.
    """

    event_id: str = Field(min_length=1, max_length=200)
    """The sender's own id of the event. One that is sent again is the same event."""
    type: FeedbackType
    trajectory_id: str | None = Field(default=None, min_length=1, max_length=200)
    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    iteration: int | None = Field(default=None, ge=0, lt=2**31)
    over: str | None = Field(default=None, min_length=1, max_length=200)
    """Of `preferred`: the trajectory of the other email."""
    confidence: float = Field(default=1.0, gt=0, le=1)
    """Of thumbs and preferences: their weight."""
    occurred_at: OccurredAt | None = None
    """None: now."""

    @model_validator(mode="after")
    def _names_one_email(self) -> Self:
        by_run = {self.run_id is not None, self.iteration is not None}
        if len(by_run) != 1 or by_run == {self.trajectory_id is not None}:
            raise ValueError("give either trajectory_id, or run_id and iteration")
        return self

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if (self.type == "preferred") != (self.over is not None):
            raise ValueError("`preferred` needs `over`, the trajectory of the other email; no other type has it")
        if "confidence" in self.model_fields_set and self.type not in _OPINIONS:
            raise ValueError(f"confidence belongs to {', '.join(sorted(_OPINIONS))} only")
        return self


class FeedbackRequest(FeedbackEvent):
    """One event."""

    source: Source = "api"
    """`simulator` for an invented event: it is shown as such wherever it counts."""


class FeedbackBatch(_Request):
    """Several events. Those that cannot be taken are told one by one; the others are."""

    events: list[FeedbackEvent] = Field(min_length=1, max_length=MAX_EVENTS)
    source: Source = "api"


def _form(body: Any) -> str:
    return "batch" if isinstance(body, dict) and "events" in body else "event"


FeedbackBody = Annotated[
    Annotated[FeedbackRequest, Tag("event")] | Annotated[FeedbackBatch, Tag("batch")], Discriminator(_form)
]


class RejectedEvent(BaseModel):
    """An event of a batch that was not taken, and why; `index` from 0."""

    index: int
    event_id: str
    detail: str


class FeedbackTaken(BaseModel):
    """What became of the events. `links` says by run where its feedback is listed."""

    accepted: int
    duplicates: int
    """Known before, with the same content."""
    rejected: list[RejectedEvent]
    links: dict[str, str]


class FeedbackOut(BaseModel):
    """One event as it is kept."""

    event_id: str
    type: FeedbackType
    trajectory_id: str
    over: str | None
    iteration: int | None
    """Of the trajectory."""
    confidence: float
    source: Source
    occurred_at: datetime
    received_at: datetime


class EmailFeedbackOut(BaseModel):
    """What is known of one email so far."""

    trajectory_id: str
    kind: str
    """Of the trajectory: showcase, train, evaluation or ask."""
    iteration: int | None
    online: float | None
    """Its furthest outcome in [0, 1]; None if it is not known to have been sent."""
    wins: float
    losses: float
    """Of thumbs and preferences, each weighted by its confidence."""
    simulated: bool
    """At least one of its events is of the market simulator."""
