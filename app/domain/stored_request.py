"""A run's request as stored: complete, without short forms, and with references in place of documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from learnloop_service.environment.json_type import Json
from learnloop_service.training.tuning import Tuning
from learnloop_service.training.types import RunConfig


class Stored(BaseModel):
    """A stored request, or a part of one."""

    model_config = ConfigDict(frozen=True)


class Choice(Stored):
    """An environment, judge or agent by name, with its settings."""

    name: str
    config: Mapping[str, Json] = Field(default_factory=dict)


class PromptReference(Stored):
    """A stored prompt, by its hash. The name is the one that the request gave, if any."""

    sha256: str
    name: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        return self.sha256[:12] if self.name is None else f"{self.name}@{self.version}"


class StoredModel(Stored):
    """The model that the run trains."""

    project: str
    name: str
    base_model: str
    tuning: Tuning | None = None
    """Which part of the model is trained; None if the request did not say, so that the backend decides."""
    enable_thinking: bool | None = None
    """The switch of that name in the chat template; None if the request did not say."""

    def as_json(self) -> dict[str, Json]:
        """Return the model as requests name it."""
        document: dict[str, Json] = {"project": self.project, "name": self.name, "base_model": self.base_model}
        if self.enable_thinking is not None:
            document["enable_thinking"] = self.enable_thinking
        return document if self.tuning is None else document | {"tuning": self.tuning.as_json()}


@dataclass(frozen=True, slots=True)
class StoredBudget:
    """Spending limits of a run or an evaluation; None is no limit."""

    max_usd: float | None = None
    max_minutes: float | None = None
    max_tokens: int | None = None


class KeptCheckpoints(Stored):
    """Which checkpoints to keep in addition to required ones: the best, the latest, multiples of a step, and as many of
    the evaluated ones."""

    keep_best: int
    keep_last: int
    keep_every: int | None = None
    keep_evaluated: int = 0


class NoSignalRule(Stored):
    """What happens to a run after `after` iterations in a row without a training signal."""

    action: Literal["continue", "pause", "fail"] = "continue"
    after: int = 3


class DiagnosisRule(Stored):
    """What happens to a run when a diagnosis of at least this severity is named."""

    action: Literal["warn", "pause"] = "warn"
    severity: Literal["warning", "fault"] = "fault"


class StoredWarmStart(Stored):
    """Settings of a warm start that are not part of RunConfig."""

    demonstrations: Mapping[str, Json]
    """`sha256`, `name`, `version` and `count` of stored demonstrations, or `oracle`: how many the environment makes."""

    @property
    def sha256(self) -> str | None:
        """Hash of the stored demonstrations; None if the environment's own are used."""
        return self.demonstrations.get("sha256")


class StoredRequest(Stored):
    """The accepted request of a run. Fields that older versions did not store default to the behavior of that time."""

    environment: Choice
    judge: Choice
    agent: Choice | None = None
    """An agent that owns its loop; None for the built-in loop."""
    prompt: PromptReference | None = None
    """The prompt of its rollouts, demonstrations by the oracle and evaluations; None for the environment's texts."""
    model: StoredModel
    budget: StoredBudget | None = None
    checkpoints: KeptCheckpoints | None = None
    """Which checkpoints to keep; None keeps all."""
    on_no_signal: NoSignalRule = NoSignalRule()
    on_diagnosis: DiagnosisRule = DiagnosisRule()
    warm_start: StoredWarmStart | None = None
    served: Mapping[str, Json] | None = None
    """`sha256` and `count` of the stored rows of the served answers that it learns from, `start`, the checkpoint that
    it starts from, and facts of `FrozenAnswers`; None for other runs."""
    keep_rollouts: bool = False
    """Whether the rollouts' token ids and log-probabilities are archived when an iteration is saved."""
    config: RunConfig
    """Settings of the learn loop."""

    @classmethod
    def parse(cls, request: Mapping[str, Json]) -> Self:
        """Parse a run's JSON column, in which the learn loop's settings are on the same level as the rest."""
        return cls.model_validate({**request, "config": request})
