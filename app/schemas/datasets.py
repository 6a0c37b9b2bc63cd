"""Bodies of the responses about inboxes, named sets of scenarios, and demonstrations."""

from datetime import datetime

from pydantic import ConfigDict, Field

from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.schemas.base import RequestBody, ResponseModel
from learnloop_service.environment.json_type import Json


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


class RolloutChoice(RequestBody):
    """Which rollouts become demonstrations, and under which name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "best", "min_reward": 1.0, "per_scenario": 2}]})

    name: str = Field(pattern=DATASET_PATTERN)
    """Name of the demonstrations: letters, digits, `-` and `_`."""
    min_reward: float = Field(allow_inf_nan=False)
    """Least reward of the rollouts that are taken. The environment's description says what a good one is."""
    per_scenario: int = Field(default=1, ge=1, le=1_000)
    """Maximum number of rollouts of the same scenario: those with the highest reward, of equal ones the earliest."""


class BestRollouts(RolloutChoice):
    """Which rollouts of a run become demonstrations, and under which name."""

    rejudging: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[^\x00]+$")
    """A completed rejudging of the run, whose rewards count instead of the run's own. Default: the run's own."""


class BestOfEvaluation(RolloutChoice):
    """Which rollouts of an evaluation of training scenarios become demonstrations, and under which name."""

    model: str | None = Field(default=None, min_length=1, max_length=300)
    """Label of the model whose rollouts are taken. Default: those of all its models."""


class BestRolloutsStored(DemonstrationsOut):
    """The demonstrations that rollouts have become."""

    rollouts: int
    """Finished rollouts of training scenarios that they were chosen from."""
    kept: int
    """Rollouts that became demonstrations."""
    scenarios: int
    """Training scenarios that they are of."""
    unfit: int
    """Rollouts that have the reward and were left out: a reply was cut off, or calls what is not one of its tools."""


class DemonstrationsDeleted(ResponseModel):
    """Demonstrations that were deleted."""

    sha256: str
    """Their hash."""
    names: list[str]
    """Names that they had, as `NAME@VERSION`, newest first."""
