"""How much disk a run takes, by the shapes of its base model's tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learnloop_service.training.bases.files import tensor_shapes
from learnloop_service.training.tuning import Tuning

ROLLOUT_BYTES = 30_000
"""Bytes of the database for a rollout with its messages, tokens and log-probabilities. A run of a 1.5B base on the
mailbox with 8,576 rollouts took 0.74 GB in all, of which its checkpoints can have been 0.55."""
_FLOAT32 = 4
_MOMENTS = 2
_OPTIMIZERS = 3
"""Checkpoints with the optimizer's state at the same time: the newest two, and the one that is being written."""
_NOT_ADAPTED = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """Bytes that a run takes."""

    checkpoint: float
    """One checkpoint without the optimizer's state."""
    checkpoints: int
    """How many of them there are at the same time at most, with the one that is being written."""
    optimizer: float
    """The optimizer's state of the checkpoints that have one."""
    rollouts: float
    """In the database."""

    @property
    def engine(self) -> float:
        """On the engine's disk."""
        return self.checkpoint * self.checkpoints + self.optimizer

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.engine + self.rollouts

    def __str__(self) -> str:
        of_state = f" and {self.optimizer / 1e9:,.2f} GB of optimizer state" if self.optimizer else ""
        return f"{self.checkpoints} checkpoints of {self.checkpoint / 1e9:,.2f} GB{of_state}"


def disk_need(directory: Path, tuning: Tuning, checkpoints: int, rollouts: int) -> DiskNeed:
    """Return what a run takes that has this number of checkpoints of the base model in a directory at the same time,
    and makes this number of rollouts. Raises OSError, or ValueError for unreadable files."""
    shapes = tensor_shapes(directory)
    if shapes is None:
        raise ValueError(f"{directory} holds no readable safetensors weights")
    if tuning.mode == "full":
        trained = sum(math.prod(shape) for shape in shapes.values())
    else:
        trained = sum(tuning.rank * sum(shape) for name, shape in shapes.items() if _is_adapted(name, shape, tuning))
    others = sum(path.stat().st_size for path in directory.iterdir() if path.suffix == ".json")  # such as the tokenizer
    weights = float(_FLOAT32 * trained)
    states = min(checkpoints, _OPTIMIZERS)
    return DiskNeed(weights + others, checkpoints, states * _MOMENTS * weights, float(ROLLOUT_BYTES * rollouts))


def _is_adapted(name: str, shape: Sequence[int], tuning: Tuning) -> bool:
    if len(shape) != 2 or name.endswith(_NOT_ADAPTED):
        return False
    return not tuning.target_modules or name.split(".")[-2] in tuning.target_modules
