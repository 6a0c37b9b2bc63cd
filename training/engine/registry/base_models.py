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
"""Models with fewer parameters are trained whole unless a LoRA is asked for."""


class Bases:
    """Those that have a name, because they were given one at the start or were added to the data directory, before or
    since; below `allowed_roots`, absolute directories are base models too."""

    def __init__(self, data_dir: Path, named: Mapping[str, Path], allowed_roots: Sequence[Path]) -> None:
        self._data_dir = data_dir
        self._named = dict(named)
        self._allowed_roots = tuple(root.resolve() for root in allowed_roots)

    def __contains__(self, name: str) -> bool:
        return name in self._named or is_added_base_model(self._data_dir, name)

    @property
    def named(self) -> dict[str, Path]:
        """All that have a name. One that was given wins over one that was added."""
        return added_base_models(self._data_dir) | self._named

    def checked(self, name: str) -> Path:
        """As `directory`. Raises BadBaseModel too, if the files show that they cannot be loaded."""
        directory = self.directory(name)
        if (fault := base_model_fault(directory)) is not None:
            raise BadBaseModel(f"the base model {name!r} cannot be used: {fault}")
        return directory

    def directory(self, name: str) -> Path:
        """Where a base model's files are. Raises UnknownModel."""
        if (directory := self.named.get(name)) is not None:
            return directory
        path = Path(name)
        if path.is_absolute() and (path / "config.json").is_file():
            resolved = path.resolve()
            if any(resolved.is_relative_to(root) for root in self._allowed_roots):
                return resolved
        raise UnknownModel(f"no base model {name!r}; there are {', '.join(self.named) or 'none'}")


def context_length(directory: Path) -> int | None:
    """The most tokens that a base model or a whole checkpoint can attend to; None where its config does not say so."""
    return _configured(directory, "max_position_embeddings")


def vocabulary_size(directory: Path) -> int | None:
    """How many token ids a base model or a whole checkpoint has; None where its config does not say so."""
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
    """How a base model is trained unless one asks otherwise."""
    return Tuning("full" if parameter_count(directory) < FULL_TUNING_BELOW else "lora")


def parameter_count(directory: Path) -> int:
    """Parameters of a model directory, from the headers of its safetensors files. Raises UnknownModel without any."""
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
