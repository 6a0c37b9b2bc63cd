"""Base models: directories in Hugging Face layout, by name."""

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from training.base_model_files import added_base_models, base_model_fault, is_added_base_model
from training.engine.registry.model_record import BadBaseModel, UnknownModel
from training.engine.registry.tuning import Tuning

FULL_TUNING_BELOW = 1_000_000_000
"""Models with fewer parameters than this are trained in full unless a LoRA is requested."""


class Bases:
    """The named base models: those configured at the start, and those added to the data directory at any time. Absolute
    directories below `allowed_roots` are base models too."""

    def __init__(self, data_dir: Path, named: Mapping[str, Path], allowed_roots: Sequence[Path]) -> None:
        self._data_dir = data_dir
        self._named = dict(named)
        self._allowed_roots = tuple(root.resolve() for root in allowed_roots)

    def __contains__(self, name: str) -> bool:
        return name in self._named or is_added_base_model(self._data_dir, name)

    @property
    def named(self) -> dict[str, Path]:
        """All named base models. A configured one takes precedence over an added one of the same name."""
        return added_base_models(self._data_dir) | self._named

    def checked(self, name: str) -> Path:
        """Return the directory like `directory`, but raise BadBaseModel if its files show that they cannot be
        loaded."""
        directory = self.directory(name)
        if (fault := base_model_fault(directory)) is not None:
            raise BadBaseModel(f"the base model {name!r} cannot be used: {fault}")
        return directory

    def directory(self, name: str) -> Path:
        """Return the directory with a base model's files. Raises UnknownModel."""
        if (directory := self.named.get(name)) is not None:
            return directory
        path = Path(name)
        if path.is_absolute() and (path / "config.json").is_file():
            resolved = path.resolve()
            if any(resolved.is_relative_to(root) for root in self._allowed_roots):
                return resolved
        raise UnknownModel(f"no base model {name!r}; there are {', '.join(self.named) or 'none'}")


def context_length(directory: Path) -> int | None:
    """Return the context length of a base model or full checkpoint in tokens, or None if its config does not give
    one."""
    return _configured(directory, "max_position_embeddings")


def vocabulary_size(directory: Path) -> int | None:
    """Return the number of token ids of a base model or full checkpoint, or None if its config does not give one."""
    return _configured(directory, "vocab_size")


@lru_cache(64)
def _configured(directory: Path, name: str) -> int | None:
    try:
        config = json.loads((directory / "config.json").read_text())
        value = {**config, **config.get("text_config", {})}.get(name)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return value if isinstance(value, int) else None


def usual_tuning(directory: Path) -> Tuning:
    """Return how a base model is trained by default."""
    return Tuning("full" if parameter_count(directory) < FULL_TUNING_BELOW else "lora")


def parameter_count(directory: Path) -> int:
    """Count the parameters of a model directory from the headers of its safetensors files. Raises UnknownModel if it
    has none."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise UnknownModel(f"{directory.name} holds no safetensors weights")
    total = 0
    for path in files:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, tensor in header.items():
            if name != "__metadata__":
                size = 1
                for extent in tensor["shape"]:
                    size *= extent
                total += size
    return total
