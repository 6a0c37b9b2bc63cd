"""An evaluation's request as stored: complete, and with names whose meaning never changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from learnloop_service.app.domain.stored_request import Choice, PromptReference, Stored, StoredBudget
from learnloop_service.environment.base import Split
from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.fork import Edit
from learnloop_service.training.statistics.turn_values import most_probes


class Contestant(Stored):
    """One of the compared models."""

    label: str
    """Its name in the report, unique within the evaluation."""
    kind: Literal["trained", "prompted"]
    model: str
    """`trained`: the backend's name for the model; `prompted`: its name on the operator's list."""
    step: int | None = None
    backend: str | None = None
    spec: Mapping[str, str] | None = None
    """Project, name and base model, for a trained model that is not on the engine."""
    prompt: PromptReference | None = None
    """What it is prompted with; None for the environment's texts."""
    recorded: str | None = None
    """An earlier evaluation whose rollouts of the same model serve again where they hold; None for new rollouts."""


class Trial(Stored):
    """What a comparison of two models decides: whether the second one gets a promoted name."""

    project: str
    name: str
    """The name that the model is to be promoted to."""
    champion: int
    """The promotion that it has to beat."""
    incumbent: int | None
    """The name's promotion when the trial begins. The model is promoted only if this has not changed."""
    model_name: str
    step: int
    prompt: PromptReference | None = None
    backend: str
    actor: str
    alpha: float
    margin: float
    look_every: int
    release_id: str | None = None
    """The release that it is part of, whose traffic decides; None if a won trial promotes the model itself."""


class Gate(Stored):
    """What a comparison of two models decides: whether the second one is better."""

    error: float
    exact: float
    look_every: int
    whole: bool = False
    """Whether a model that is better does the scenarios that are left, so that its figures are over all of them."""


class WhatIf(Stored):
    """A fork of a recorded rollout at one turn or more. Each turn is a scenario of the evaluation."""

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


class Rejudge(Stored):
    """Which stored rollouts of a run are judged again."""

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


class StoredEvaluation(Stored):
    """What determines the results of an evaluation of any kind. Each kind is a class of its own; see `Evaluation`."""

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
    budget: StoredBudget | None = None
    """Spending limits; None for no limits."""

    @property
    def slots(self) -> int:
        """Number of rollouts to judge; in a search by bisection, at most."""
        return len(self.models) * self.scenarios * self.samples

    @property
    def units(self) -> list[list[tuple[int, int]]]:
        """What intervals are over, here scenarios. Each is given by its rollouts' numbers of scenario and sample."""
        return [[(scenario, sample) for sample in range(self.samples)] for scenario in range(self.scenarios)]

    @property
    def listed_by(self) -> dict[str, str]:
        """The columns by which evaluations of this kind are listed; none for those that are listed by themselves."""
        return {}

    def stored(self) -> dict[str, Json]:
        """Return the JSON column, in which the fields of other kinds are null."""
        return dict.fromkeys(_KINDS) | self.model_dump(mode="json")


class Comparison(StoredEvaluation):
    """Models attempt the same scenarios."""


class TrialEvaluation(Comparison):
    """A comparison of two models that decides a trial, and ends when it is decided."""

    trial: Trial


class GateEvaluation(Comparison):
    """A comparison of two models that decides whether the second one is better, and ends when it is decided."""

    gate: Gate


class WhatIfEvaluation(StoredEvaluation):
    """Rollouts that all continue a recorded one."""

    what_if: WhatIf

    @property
    def slots(self) -> int:
        turns = min(self.scenarios, most_probes(self.scenarios)) if self.what_if.search == "bisect" else self.scenarios
        return len(self.models) * turns * self.samples

    @property
    def units(self) -> list[list[tuple[int, int]]]:
        """The continuations, because all have the same scenario."""
        return [[(turn, sample)] for turn in range(self.scenarios) for sample in range(self.samples)]

    @property
    def listed_by(self) -> dict[str, str]:
        return {"trajectory_id": self.what_if.trajectory_id}


class RejudgingEvaluation(StoredEvaluation):
    """Stored rollouts are judged again, and no new ones are made."""

    rejudge: Rejudge

    @property
    def slots(self) -> int:
        return self.rejudge.rollouts * self.rejudge.repeats

    @property
    def listed_by(self) -> dict[str, str]:
        return {"run_id": self.rejudge.run_id}


Evaluation = Comparison | TrialEvaluation | GateEvaluation | WhatIfEvaluation | RejudgingEvaluation
"""An evaluation's request. A stored row is of the kind whose field is not null; without any, it is a comparison."""
_KINDS: Mapping[str, type[Evaluation]] = {
    "trial": TrialEvaluation,
    "gate": GateEvaluation,
    "what_if": WhatIfEvaluation,
    "rejudge": RejudgingEvaluation,
}


def parse_evaluation(request: Mapping[str, Json]) -> Evaluation:
    """Parse the JSON column."""
    kind = next((kind for name, kind in _KINDS.items() if request.get(name) is not None), Comparison)
    return kind.model_validate(request)


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
