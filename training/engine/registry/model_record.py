"""A model and what its names mean: the records that the registry keeps, and what is wrong with a name."""

import re
from dataclasses import dataclass
from pathlib import Path

from training.engine.registry.tuning import Tuning

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Of an entity, a project or a model: it becomes a directory's."""
INFERENCE_NAME = re.compile(
    r"(?:wandb-artifact:///(?P<entity>[^/]+)/(?=[^/]+/))?"
    r"(?:(?P<project>[^/@:]+)/)?(?P<name>[^/@:]+?)(?:(?:@|:step)(?P<step>\d{1,9}))?"
)


class UnknownModel(Exception):
    """No model, checkpoint or base model of that name."""


class DamagedModel(Exception):
    """The file that describes a model cannot be read; its checkpoints may well be whole."""


class BadBaseModel(Exception):
    """A base model's files cannot be loaded; the message names the one at fault."""


class BadModelDirectory(Exception):
    """The directory does not hold a causal language model that can be loaded."""


class ModelExists(Exception):
    """The name is taken by a model that was not asked for."""


class BadModelName(ValueError):
    """The name cannot be a directory's, or means nothing."""


class CheckpointInUse(Exception):
    """The newest checkpoint is the model's state and cannot be deleted."""


class StepTaken(Exception):
    """Another engine committed that step of the model first."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A trainable model, made from `origin`: a base model's name, or another model's checkpoint `project/name@step`."""

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
        """`project/name`."""
        return f"{self.project}/{self.name}"


@dataclass(frozen=True, slots=True)
class Target:
    """Weights that can be sampled: a checkpoint, or a base model (whose `model` is None). `key` names them exactly."""

    key: str
    directory: Path
    base_directory: Path
    tuning: Tuning
    model: ModelRecord | None = None
    step: int = 0

    @property
    def next(self) -> "Target":
        """The checkpoint that is written after this one, of a model that is trained."""
        assert self.model is not None
        step = self.step + 1
        directory = self.directory.with_name(f"{step:06d}")
        base = directory if self.tuning.mode == "full" else self.base_directory
        return Target(f"{self.model.full_name}@{step}", directory, base, self.tuning, self.model, step)
