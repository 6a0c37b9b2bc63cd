"""A run's request as it is stored: complete, without short forms, and with references in place of documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from environment.json_type import Json
from training.types import RunConfig


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True)


class Choice(_Stored):
    """An environment, a judge or an agent by name, with its own settings."""

    name: str
    config: Mapping[str, Json] = Field(default_factory=dict)


class StoredModel(_Stored):
    """The model that the run trains."""

    project: str
    name: str
    base_model: str


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend at most; None is no limit."""

    max_usd: float | None = None
    max_minutes: float | None = None
    max_tokens: int | None = None


class KeptCheckpoints(_Stored):
    """Which checkpoints are kept besides those that are needed: the best, the newest, and multiples of a step."""

    keep_best: int
    keep_last: int
    keep_every: int | None = None


class NoSignalRule(_Stored):
    """What becomes of a run when `after` iterations in a row taught nothing."""

    action: Literal["continue", "pause", "fail"] = "continue"
    after: int = 3


class StoredWarmStart(_Stored):
    """What a run learns from first, besides what is in RunConfig."""

    demonstrations: Mapping[str, Json]
    """`sha256` of stored ones, with `name`, `version` and `count`; or `oracle`: how many of the environment's own."""

    @property
    def sha256(self) -> str | None:
        """Of stored ones."""
        return self.demonstrations.get("sha256")


class StoredRequest(_Stored):
    """Fields that older versions did not store have the values that runs had then."""

    environment: Choice
    judge: Choice
    agent: Choice | None = None
    """One that owns its loop; None: the built-in loop."""
    model: StoredModel
    budget: Budget | None = None
    checkpoints: KeptCheckpoints | None = None
    """None keeps all."""
    on_no_signal: NoSignalRule = NoSignalRule()
    warm_start: StoredWarmStart | None = None
    config: RunConfig
    """The learn loop's settings."""

    @classmethod
    def parse(cls, request: Mapping[str, Json]) -> Self:
        """From a run's JSON column, where the learn loop's settings stand beside the rest."""
        return cls.model_validate({**request, "config": request})
