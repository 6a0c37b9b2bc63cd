"""Bodies of the responses about inboxes, named sets of scenarios, and demonstrations."""

from datetime import datetime

from pydantic import ConfigDict, Field

from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.schemas.base import RequestBody, ResponseModel
from learnloop_service.environment.json_type import Json


class InboxStored(ResponseModel):
    """A stored inbox. Name it in `environment.config.inbox` of a learn-loop."""

    name: str
    """Its name."""
    version: int
    """Its version under this name, from 1. Emails that the newest version has already make no new one."""
    sha256: str
    """Hash of the emails, in hexadecimal."""
    emails: int
    """Number of emails."""
    first: str | None
    """Day of the oldest email, such as `2001-05-15`; null if none has a date."""
    last: str | None
    """Day of the newest email."""
    duplicates: int
    """Emails that were left out because an earlier one has the same Message-ID."""
    unreadable: int
    """Emails that were left out because they cannot be read, or, in JSON Lines, have no `message_id`."""
    truncated: int
    """Emails of which only the beginning is kept."""
    undated: int
    """Emails without a date."""
    links: dict[str, str]
    """Path of the list of its versions, as `versions`."""


class InboxOut(ResponseModel):
    """A version of an inbox."""

    name: str
    """Its name."""
    version: int
    """Its version under this name, from 1."""
    sha256: str
    """Hash of the emails, in hexadecimal."""
    emails: int
    """Number of emails."""
    origin: dict[str, Json]
    """What it was made from: `source` is `api` or `prepared`; then settings, hashes of the sources and counts."""
    created_at: datetime
    """When it was stored or first seen by the service."""


class ScenarioSetOut(ResponseModel):
    """A version of a named set of scenarios."""

    name: str
    """Its name."""
    version: int
    """Its version under this name, from 1."""
    sha256: str
    """Hash of the scenarios, as in `environment.config.scenarios`."""
    count: int
    """Number of scenarios."""
    environment: str
    """The environment that they are for."""
    inbox_sha256: str | None
    """Hash of the inbox that they are about; null if they are about none, or about an imported one."""
    origin: dict[str, Json]
    """What it was made from: `source` is `api`, `prepared`, `templates`, `conversations` or `questions`; then settings,
    hashes of the sources and counts."""
    created_at: datetime
    """When it was stored or first seen by the service."""
    links: dict[str, str]
    """Path of the scenarios, as `self`."""


class QuestionsRequest(RequestBody):
    """How many questions to make about an inbox."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"count": 300}]})

    count: int = Field(default=300, ge=3, le=1_000)
    """Maximum number of questions. An email gives up to two, and some give none."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Decides which emails they are about."""


class InboxesDeleted(ResponseModel):
    """What was deleted of an inbox."""

    deleted: list[InboxOut]
    """The versions, newest first."""


class ScenariosDeleted(ResponseModel):
    """Scenarios that were deleted."""

    sha256: str
    """Their hash."""
    names: list[str]
    """Names that they had, as `NAME@VERSION`, newest first."""


class DemonstrationsOut(ResponseModel):
    """A version of stored demonstrations. Name them in `warm_start.demonstrations.dataset` of a learn-loop."""

    name: str
    """Their name."""
    version: int
    """Their version under this name, from 1. What the newest version has already makes no new one."""
    sha256: str
    """Hash of the demonstrations, in hexadecimal."""
    count: int
    """Number of conversations."""
    origin: dict[str, Json]
    """What they were made from: `source` is `api`, `run` with `run_id`, `min_reward` and `per_scenario`, or
    `conversations` with what was counted and `left_out`."""
    created_at: datetime
    """When they were stored."""
    links: dict[str, str]
    """Path of the demonstrations, as `self`."""


class BestRollouts(RequestBody):
    """Which rollouts of a run become demonstrations, and under which name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "best", "min_reward": 1.0, "per_scenario": 2}]})

    name: str = Field(pattern=DATASET_PATTERN)
    """Name of the demonstrations: letters, digits, `-` and `_`."""
    min_reward: float = Field(allow_inf_nan=False)
    """Only rollouts with at least this reward. What a good one is, the environment says."""
    per_scenario: int = Field(default=1, ge=1, le=1_000)
    """Maximum number of rollouts of the same scenario: those with the highest reward, of equal ones the earliest."""
    rejudging: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[^\x00]+$")
    """A completed rejudging of the run, whose rewards count instead of the run's own. Default: the run's own."""


class BestRolloutsStored(DemonstrationsOut):
    """The demonstrations that rollouts of a run have become."""

    rollouts: int
    """Finished training rollouts of the run."""
    kept: int
    """Those that became demonstrations."""
    scenarios: int
    """Training scenarios that they are of."""
    unfit: int
    """Those that have the reward and were left out: a reply was cut off, or calls what is not one of its tools."""


class DemonstrationsDeleted(ResponseModel):
    """Demonstrations that were deleted."""

    sha256: str
    """Their hash."""
    names: list[str]
    """Names that they had, as `NAME@VERSION`, newest first."""
