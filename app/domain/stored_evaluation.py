"""An evaluation's request as stored: complete, and with names whose meaning never changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from app.domain.stored_request import Budget, Choice
from environment.base import Split
from environment.json_type import Json
from training.rollout.fork import Edit
from training.statistics.turn_values import most_probes


class Contestant(BaseModel):
    """One of the compared models."""

    model_config = ConfigDict(frozen=True)

    label: str
    """Its name in the report, unique within the evaluation."""
    kind: Literal["trained", "prompted"]
    model: str
    """`trained`: the backend's name for the model; `prompted`: its name on the operator's list."""
    step: int | None = None
    backend: str | None = None
    spec: Mapping[str, str] | None = None
    """Project, name and base model, for a trained model that is not on the engine."""


class Trial(BaseModel):
    """What a comparison of two models decides: whether the second one gets a promoted name."""

    model_config = ConfigDict(frozen=True)

    project: str
    name: str
    """The name that the model is to be promoted to."""
    champion: int
    """The promotion that it has to beat."""
    incumbent: int | None
    """The name's promotion when the trial begins. The model is promoted only if this has not changed."""
    model_name: str
    step: int
    backend: str
    actor: str
    alpha: float
    margin: float
    look_every: int
    release_id: str | None = None
    """The release that it is part of, whose traffic decides; None if a won trial promotes the model itself."""


class WhatIf(BaseModel):
    """A fork of a recorded rollout at one turn or more. Each turn is a scenario of the evaluation."""

    model_config = ConfigDict(frozen=True)

    trajectory_id: str
    turns: tuple[int, ...]
    """The turns, from 1, that the continuations begin with."""
    search: Literal["bisect", "all"] | None = None
    """How the turn is looked for that decided the rollout; None for the continuations of one turn."""
    edit: Edit | None = None
    earlier: tuple[Edit, ...] = ()
    """The edits with which the rollout itself was made, if it is a continuation."""
    own_seed: int | None = None
    """The rollout's own seed, if it is to be sampled again; None for seeds of the evaluation."""
    state: tuple[str, int] | None = None
    """Run and iteration after which a reflective environment had the state in which the rollout was made."""
    counts: bool
    """Whether its continuations tell the values of turns: unedited, by the rollout's own checkpoint, as it was sampled.
    """
    exact: bool
    """Whether the recorded token ids are known."""


class Rejudge(BaseModel):
    """Which stored rollouts of a run are judged again."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    kinds: tuple[Literal["train", "evaluation"], ...]
    first: int
    """The first iteration."""
    last: int
    """The last iteration."""
    repeats: int
    rollouts: int
    """Number of rollouts, each of which is judged once for each repeat."""
    code: str
    """SHA-256 of the code of judges and environments."""


class StoredEvaluation(BaseModel):
    """Everything that determines an evaluation's results."""

    model_config = ConfigDict(frozen=True)

    models: tuple[Contestant, ...]
    environment: Choice
    judge: Choice
    agent: Choice | None = None
    """An agent that owns its loop; None for the built-in loop."""
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
    """The trial that the evaluation decides; None if it is only a comparison."""
    what_if: WhatIf | None = None
    """The recorded rollout that all rollouts continue; None if they begin at the beginning."""
    rejudge: Rejudge | None = None
    """The stored rollouts that are judged again, if no new ones are made."""
    budget: Budget | None = None
    """Spending limits; None for no limits."""

    @classmethod
    def parse(cls, request: Mapping[str, Json]) -> Self:
        """Parse the JSON column."""
        return cls.model_validate(request)

    @property
    def slots(self) -> int:
        """Number of rollouts to judge; in a search by bisection, at most."""
        if self.rejudge is not None:
            return self.rejudge.rollouts * self.rejudge.repeats
        scenarios = self.scenarios
        if self.what_if is not None and self.what_if.search == "bisect":
            scenarios = min(scenarios, most_probes(scenarios))
        return len(self.models) * scenarios * self.samples


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """Position of a rollout: numbers of its model, scenario and sample, from 0."""

    model: int
    scenario: int
    sample: int

    def __str__(self) -> str:
        return f"{self.model}/{self.scenario}/{self.sample}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a slot from its `str` form."""
        return cls(*map(int, text.split("/")))
