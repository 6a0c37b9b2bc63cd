"""How much memory the engine needs for a base model, by the shapes of its tensors."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from learnloop_service.training.bases.files import parameter_count, tensor_shapes
from learnloop_service.training.tuning import Tuning, usual_tuning

PROGRAM_BYTES = 1.5e9
"""Memory for the program, its libraries, the activations of a small batch and a small cache of conversations."""
_FLOAT32, _BFLOAT16 = 4, 2
_WHOLE_BYTES = 4 * _FLOAT32
"""Bytes of a parameter that is trained: its value, its gradient and Adam's two moments."""
_CPU_COPIES = 4
"""Number of checkpoints that an engine on a CPU keeps for sampling (`loaded_checkpoints` of training/engine/engine.py).
On a GPU idle ones give way where memory is short."""
_LLAMA_SHAPED = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types of which the engine has weights of its own for sampling, with an output head apart from the embedding,
and, on a GPU, one copy of a base for sampling and for training a LoRA."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Parameters of a base model, and bytes of memory that the engine needs for it."""

    parameters: int
    """A head that is tied to the embedding counts once, also if the files have it a second time."""
    training: float
    sampling: float
    program: float = PROGRAM_BYTES

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.training + self.sampling + self.program


def usual_tuning_of(directory: Path) -> Tuning:
    """Return how the engine trains a base model unless a request says otherwise. Raises ValueError for unreadable
    files."""
    if (parameters := parameter_count(directory)) is None:
        raise _unreadable(directory)
    return usual_tuning(parameters)


def memory_needed(
    directory: Path, tuning: Tuning, device: Literal["cpu", "cuda"], training_weights: Literal["exact", "fp8"] = "exact"
) -> MemoryNeed:
    """Return what a run on the base model needs at least. Raises OSError, or ValueError for unreadable files."""
    shapes = tensor_shapes(directory)
    if shapes is None:
        raise _unreadable(directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    is_tied = _HEAD not in sizes or config.get("tie_word_embeddings") is True
    parameters = sum(size for name, size in sizes.items() if not (is_tied and name == _HEAD))
    llama_shaped = config.get("model_type") in _LLAMA_SHAPED
    sampled = parameters + (sizes.get(_EMBEDDING, 0) if is_tied and llama_shaped else 0)
    if device == "cpu":
        training = (_WHOLE_BYTES if tuning.mode == "full" else _FLOAT32) * parameters
        return MemoryNeed(parameters, training, _CPU_COPIES * _FLOAT32 * sampled)
    if tuning.mode == "full":
        return MemoryNeed(parameters, _WHOLE_BYTES * parameters, _BFLOAT16 * sampled)
    if not llama_shaped:
        return MemoryNeed(parameters, _BFLOAT16 * parameters, _BFLOAT16 * sampled)
    outside = sum(
        size for name, size in sizes.items() if name in (_EMBEDDING, _HEAD) and not (is_tied and name == _HEAD)
    )
    in_8_bits = parameters - outside if training_weights == "fp8" else 0
    return MemoryNeed(parameters, _BFLOAT16 * parameters - in_8_bits, 0)


def _unreadable(directory: Path) -> ValueError:
    return ValueError(f"{directory} holds no readable safetensors weights")
