"""An evaluation's request as it is stored: complete, and with names that mean the same for ever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from app.domain.stored_request import Budget, Choice
from environment.base import Split
from environment.json_type import Json


class Contestant(BaseModel):
    """One of the models that are compared."""

    model_config = ConfigDict(frozen=True)

    label: str
    """Its name in the report; no other one of the evaluation has it."""
    kind: Literal["trained", "prompted"]
    model: str
    """`trained`: as its backend knows it; `prompted`: its name on the operator's list."""
    step: int | None = None
    backend: str | None = None
    spec: Mapping[str, str] | None = None
    """Project, name and base model of a trained one that is not on the engine."""


class Trial(BaseModel):
    """What a comparison of two models decides: whether the second one takes a promoted name."""

    model_config = ConfigDict(frozen=True)

    project: str
    name: str
    """The name that it is promoted to."""
    champion: int
    """The promotion that it has to beat."""
    incumbent: int | None
    """What the name means when the trial begins; it is promoted only if that has not changed."""
    model_name: str
    step: int
    backend: str
    actor: str
    alpha: float
    margin: float
    look_every: int


class StoredEvaluation(BaseModel):
    """What decides how an evaluation comes out."""

    model_config = ConfigDict(frozen=True)

    models: tuple[Contestant, ...]
    environment: Choice
    judge: Choice
    agent: Choice | None = None
    """One that owns its loop; None: the built-in loop."""
    split: Split
    scenarios: int
    samples: int
    seed: int
    temperature: float
    max_turns: int | None
    max_completion_tokens: int
    rollout_timeout_s: float
    concurrency: int
    trial: Trial | None = None
    """None: nothing is decided."""
    budget: Budget | None = None
    """None: no limits."""

    @classmethod
    def parse(cls, request: Mapping[str, Json]) -> Self:
        """From the JSON column."""
        return cls.model_validate(request)

    @property
    def slots(self) -> int:
        """The number of rollouts."""
        return len(self.models) * self.scenarios * self.samples


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """The place of a rollout: numbers of its model, scenario and sample, from 0."""

    model: int
    scenario: int
    sample: int

    def __str__(self) -> str:
        return f"{self.model}/{self.scenario}/{self.sample}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The slot that `str` wrote."""
        return cls(*map(int, text.split("/")))
