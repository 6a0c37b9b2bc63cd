"""Bodies of the requests and responses about feedback."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from learnloop_service.app.schemas.base import RequestBody, ResponseModel

MAX_EVENTS = 1_000
"""Maximum number of events in one request."""
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
    "outcome",
    "withdrawn",
]
Opinion = Literal["thumbs_up", "thumbs_down", "preferred"]
Source = Literal["api", "simulator"]
_PROMOTED = r"^[A-Za-z0-9._-]{1,128}/[A-Za-z0-9._-]{1,128}$"
_EVENT, _BATCH = "one event", "several events"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _rfc3339(value: Any) -> Any:
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        return value
    raise ValueError("give the time as RFC 3339 with a time zone, such as 2026-03-14T09:30:00Z")


OccurredAt = Annotated[AwareDatetime, BeforeValidator(_rfc3339), Field(ge=datetime(2000, 1, 1, tzinfo=UTC))]


class FeedbackEvent(RequestBody):
    """What happened to an email, or what someone thinks of it or of what an agent did, or what came of it.

    Name the email by its `trajectory_id`, or by `run_id` and `iteration`: the sample email of that iteration. In
    environments without emails, answers accept thumbs, preferences and outcomes. So do sessions in production, by
    `session_id`. Answers that are not stored, such as those of `/v1`, are named by the `user` who got them and the
    promoted name that was asked, as `model`.
    """

    event_id: str = Field(min_length=1, max_length=200)
    """The sender's id of the event. Sending the same event again has no effect."""
    type: FeedbackType
    """An outcome of an email (sent, opened, replied, call_booked, opportunity, closed_won), an opinion of it
    (thumbs_up, thumbs_down, preferred), an outcome of your own (outcome, with `name` and `value`), or the withdrawal of
    an event (withdrawn, with `withdraws`)."""
    trajectory_id: str | None = Field(default=None, min_length=1, max_length=200)
    """Id of the trajectory that the email is from. Give this, or `run_id` and `iteration`, or `session_id`, or `user`
    and `model`."""
    session_id: str | None = Field(default=None, min_length=1, max_length=64)
    """Id of a session outside of runs. Give this, or `trajectory_id`, or `run_id` and `iteration`, or `user` and
    `model`."""
    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    """Id of the run whose sample email it is. Needs `iteration`."""
    iteration: int | None = Field(default=None, ge=0, lt=2**31)
    """Iteration of the sample email; 0 is the baseline. Needs `run_id`."""
    user: str | None = Field(default=None, min_length=1, max_length=256)
    """Key of the user that it is about, the same as in the requests; only its hash is stored. Needs `model`."""
    model: str | None = Field(default=None, pattern=_PROMOTED)
    """The promoted name that the user asked, as `PROJECT/NAME`. Needs `user`."""
    over: str | None = Field(default=None, min_length=1, max_length=200)
    """Id of the trajectory of the other email, or of the other session, which was not preferred. Required for
    `preferred`, not allowed for other types."""
    confidence: float = Field(default=1.0, gt=0, le=1)
    """Weight of an opinion, above 0 and at most 1. Only allowed for opinions."""
    comment: str | None = Field(default=None, min_length=1, max_length=2_000)
    """What was said with an opinion. Only allowed for opinions."""
    name: str | None = Field(default=None, min_length=1, max_length=64)
    """Name of the outcome, such as `resolved`. Required for `outcome`, not allowed for other types."""
    value: float | None = Field(default=None, ge=0, le=1)
    """Value of the outcome, from 0 to 1. Required for `outcome`, not allowed for other types."""
    withdraws: str | None = Field(default=None, min_length=1, max_length=200)
    """`event_id` of the event that no longer counts. Name the same subject as that event, which can also arrive later.
    Repetitions of it under other ids no longer count either. Required for `withdrawn`, not allowed for other types."""
    occurred_at: OccurredAt | None = None
    """When it happened, as RFC 3339 with a time zone; at most 5 minutes in the future. Default: now."""

    @model_validator(mode="after")
    def _names_one_subject(self) -> Self:
        by_run = {self.run_id is not None, self.iteration is not None}
        by_user = {self.user is not None, self.model is not None}
        ways = [self.trajectory_id is not None, self.session_id is not None, by_run == {True}, by_user == {True}]
        if len(by_run) != 1 or len(by_user) != 1 or ways.count(True) != 1:
            raise ValueError(
                "give either trajectory_id, or session_id, or both run_id and iteration, or both user and model"
            )
        return self

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if (self.type == "preferred") != (self.over is not None):
            raise ValueError(
                "`over` (the other email's trajectory) is required for `preferred` and not allowed for other types"
            )
        if self.type == "preferred" and self.user is not None:
            raise ValueError("`preferred` compares two trajectories or two sessions, so it cannot be about a user")
        if {self.name is not None, self.value is not None} != {self.type == "outcome"}:
            raise ValueError("`name` and `value` are required for `outcome` and not allowed for other types")
        if (self.type == "withdrawn") != (self.withdraws is not None):
            raise ValueError(
                "`withdraws` (the id of another event) is required for `withdrawn` and not allowed for other types"
            )
        if self.withdraws == self.event_id:
            raise ValueError("an event cannot withdraw itself")
        for name in ("confidence", "comment"):
            if name in self.model_fields_set and self.type not in get_args(Opinion):
                raise ValueError(f"{name} is only allowed for {', '.join(sorted(get_args(Opinion)))}")
        return self


class FeedbackRequest(FeedbackEvent):
    """One feedback event."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"event_id": "crm-4711", "type": "replied", "run_id": "01KAJ3M7F5T2V8Q9X0C4D6E8GA", "iteration": 1},
                {"event_id": "ticket-7", "type": "thumbs_down", "session_id": "01KAJ3M7F5T2V8Q9X0C4D6E8GC"},
                {
                    "event_id": "ticket-8",
                    "type": "outcome",
                    "name": "resolved",
                    "value": 1,
                    "user": "customer-17",
                    "model": "mail/live",
                },
                {
                    "event_id": "ticket-8-reopened",
                    "type": "withdrawn",
                    "withdraws": "ticket-8",
                    "user": "customer-17",
                    "model": "mail/live",
                },
            ]
        }
    )

    source: Source = "api"
    """`simulator` marks an invented event; figures that use it say so."""


class FeedbackBatch(RequestBody):
    """Several feedback events. Valid ones are stored even if others are rejected."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "events": [
                        {"event_id": "crm-1", "type": "sent", "trajectory_id": "01KAJ3M7F5T2V8Q9X0C4D6E8GB"},
                        {"event_id": "crm-2", "type": "thumbs_up", "trajectory_id": "01KAJ3M7F5T2V8Q9X0C4D6E8GB"},
                    ]
                }
            ]
        }
    )

    events: list[FeedbackEvent] = Field(min_length=1, max_length=MAX_EVENTS)
    """The events, in any order."""
    source: Source = "api"
    """`simulator` marks invented events; figures that use them say so."""


def _form(body: Any) -> str:
    return _BATCH if isinstance(body, dict) and "events" in body else _EVENT


FeedbackBody = Annotated[
    Annotated[FeedbackRequest, Tag(_EVENT)] | Annotated[FeedbackBatch, Tag(_BATCH)], Discriminator(_form)
]


class RejectedEvent(ResponseModel):
    """An event of a batch that was rejected."""

    index: int
    """Position in the batch, from 0."""
    event_id: str
    """The sender's id of the event."""
    detail: str
    """Why it was rejected."""


class FeedbackTaken(ResponseModel):
    """How many events were stored."""

    accepted: int
    """Number of events stored now."""
    duplicates: int
    """Number of events that were already stored, with the same content."""
    rejected: list[RejectedEvent]
    """The events that were not stored, with the reason."""
    links: dict[str, str]
    """Path where the feedback of a run or of a session is listed, by its id."""


class _StoredEvent(ResponseModel):
    event_id: str
    """The sender's id of the event."""
    confidence: float
    """Weight of the opinion, above 0 and at most 1."""
    comment: str | None
    """What was said with an opinion; null for nothing."""
    name: str | None
    """Name of an outcome; null for other types."""
    value: float | None
    """Value of an outcome, from 0 to 1; null for other types."""
    source: Source
    """`simulator` if the event was invented, otherwise `api`."""
    occurred_at: datetime
    """When it happened, as the sender reported it."""
    received_at: datetime
    """When the service received it."""


class FeedbackOut(_StoredEvent):
    """One stored feedback event that was not withdrawn."""

    type: FeedbackType
    """The outcome or opinion."""
    trajectory_id: str
    """Id of the trajectory that the email is from."""
    over: str | None
    """Id of the trajectory of the other email, for a preference; otherwise null."""
    iteration: int | None
    """Iteration of the trajectory; 0 is the baseline. Null if it belongs to none."""


class SessionFeedbackOut(_StoredEvent):
    """One stored opinion or outcome of a session that was not withdrawn."""

    type: Opinion | Literal["outcome"]
    """The opinion, or `outcome`."""
    session_id: str
    """Id of the session; of a preference, that of the one preferred."""
    over: str | None
    """Id of the session that was not preferred; null for other opinions."""


class EmailFeedbackOut(ResponseModel):
    """All feedback on one email so far."""

    trajectory_id: str
    """Id of the trajectory that the email is from."""
    kind: str
    """Kind of its trajectory: showcase (the sample email of an iteration), train, evaluation or ask."""
    iteration: int | None
    """Iteration of its trajectory; 0 is the baseline. Null if it belongs to none."""
    online: float | None
    """Value in [0, 1] of its best outcome, from opened to closed_won; null if it is not known to have been sent."""
    wins: float
    """Thumbs and preferences in its favour, weighted by their confidence."""
    losses: float
    """Thumbs and preferences against it, weighted by their confidence."""
    simulated: bool
    """Whether at least one of its events comes from the market simulator."""
