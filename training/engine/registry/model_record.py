"""Model records that the registry keeps, the targets that names resolve to, and the errors for bad names."""

import re
from dataclasses import dataclass
from pathlib import Path

from learnloop_service.training.tuning import Tuning

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Valid names of entities, projects and models. They become directory names."""
INFERENCE_NAME = re.compile(
    r"(?:wandb-artifact:///(?P<entity>[^/]+)/(?=[^/]+/))?"
    r"(?:(?P<project>[^/@:]+)/)?(?P<name>[^/@:]+?)(?:(?:@|:step)(?P<step>\d{1,9}))?"
)


class UnknownModel(Exception):
    """There is no model, checkpoint or base model of that name."""


class DamagedModel(Exception):
    """The file that describes a model cannot be read. The model's checkpoints can still be intact."""


class BadBaseModel(Exception):
    """A base model's files cannot be loaded. The message names the file at fault."""


class BadModelDirectory(Exception):
    """The directory does not hold a causal language model that can be loaded."""


class ModelExists(Exception):
    """The name is taken by a different model."""


class BadModelName(ValueError):
    """The name cannot be a directory's name or has no meaning."""


class CheckpointInUse(Exception):
    """The newest checkpoint holds the model's state and cannot be deleted."""


class StepTaken(Exception):
    """Another engine committed that step of the model first."""


@dataclass(frozen=True, slots=True)
class NewModel:
    """The parameters of a model to create; see Registry.create."""

    project: str | None
    name: str | None
    base_model: str
    entity: str | None = None
    return_existing: bool = False
    tuning: Tuning | None = None
    enable_thinking: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A trainable model made from `origin`: a base model's name, or a checkpoint of another model as
    `project/name@step`."""

    id: str
    entity: str
    project: str
    name: str
    base_model: str
    origin: str
    tuning: Tuning
    created: str
    directory: Path

    @property
    def full_name(self) -> str:
        """The name with its project, `project/name`."""
        return f"{self.project}/{self.name}"


@dataclass(frozen=True, slots=True)
class Target:
    """Weights to sample from: a checkpoint, or a base model (whose `model` is None). `key` identifies them uniquely."""

    key: str
    directory: Path
    base_directory: Path
    tuning: Tuning
    model: ModelRecord | None = None
    step: int = 0

    @property
    def next(self) -> "Target":
        """The checkpoint that training will write after this one. Until then the files that all checkpoints of the
        model share are those of `base_directory`."""
        assert self.model is not None
        step = self.step + 1
        directory = self.directory.with_name(f"{step:06d}")
        return Target(f"{self.model.full_name}@{step}", directory, self.base_directory, self.tuning, self.model, step)
