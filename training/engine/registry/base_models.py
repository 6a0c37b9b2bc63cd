"""Base models: directories in Hugging Face layout, by name."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path

from learnloop_service.training.bases import files
from learnloop_service.training.bases.files import (
    added_base_models,
    base_model_fault,
    is_added_base_model,
    place_of_added,
)
from learnloop_service.training.bases.verdicts import BaseVerdicts
from learnloop_service.training.engine.registry.model_record import BadBaseModel, UnknownModel

_SHIPPED = Path(__file__).parents[1] / "tiny_base"
"""Place of the base model that comes with Learnloop, which needs no check."""


class Bases:
    """The named base models: those configured at the start, and those added to the data directory at any time. Absolute
    directories below `allowed_roots` are base models too."""

    def __init__(self, data_dir: Path, named: Mapping[str, Path], allowed_roots: Sequence[Path]) -> None:
        self._data_dir = data_dir
        self._named = dict(named)
        self._allowed_roots = tuple(root.resolve() for root in allowed_roots)
        self.verdicts = BaseVerdicts(data_dir)

    def __contains__(self, name: str) -> bool:
        return name in self._named or is_added_base_model(self._data_dir, name)

    @property
    def named(self) -> dict[str, Path]:
        """All named base models. A configured one takes precedence over an added one of the same name."""
        return added_base_models(self._data_dir) | self._named

    @property
    def offered(self) -> list[str]:
        """Names of the base models, except those that failed their check or are set aside."""
        return [name for name, directory in self.named.items() if self._refusal(directory) is None]

    def checked(self, name: str) -> Path:
        """Return the directory like `directory`, but raise BadBaseModel if its files show that they cannot be
        loaded."""
        directory = self.directory(name)
        self.require(name, self._refusal(directory) or base_model_fault(directory))
        return directory

    @staticmethod
    def require(name: str, fault: str | None) -> None:
        """Raise BadBaseModel if there is a fault."""
        if fault is not None:
            raise BadBaseModel(f"the base model {name!r} cannot be used: {fault}")

    def unchecked(self, name: str) -> Path | None:
        """Return the directory of a base model that others made and that was not checked yet, or None. Names of other
        models are not looked up."""
        if name not in self and not Path(name).is_absolute():
            return None
        try:
            directory = self.directory(name)
        except UnknownModel:
            return None
        return None if _is_shipped(directory) or self.verdicts.find(directory) else directory

    def loading(self, name: str) -> AbstractContextManager[None]:
        """Mark a base model, or a model trained from it, as being loaded; see BaseVerdicts. Raises BadBaseModel if it
        is set aside."""
        try:
            directory = self.directory(name)
        except UnknownModel:
            return nullcontext()
        self.require(name, self._refusal(directory))
        return nullcontext() if _is_shipped(directory) else self.verdicts.loading(directory)

    def _refusal(self, directory: Path) -> str | None:
        return None if _is_shipped(directory) else self.verdicts.fault(directory)

    def directory(self, name: str) -> Path:
        """Return the directory with a base model's files. Raises UnknownModel."""
        if name in self._named:
            return self._named[name]
        if is_added_base_model(self._data_dir, name):
            return place_of_added(self._data_dir, name)
        path = Path(name)
        if path.is_absolute() and (path / "config.json").is_file():
            resolved = path.resolve()
            if any(resolved.is_relative_to(root) for root in self._allowed_roots):
                return resolved
        raise UnknownModel(f"no base model {name!r}; there are {', '.join(self.named) or 'none'}")


def _is_shipped(directory: Path) -> bool:
    return directory.is_relative_to(_SHIPPED)


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


def parameter_count(directory: Path) -> int:
    """Count the parameters of a model directory from the headers of its safetensors files. Raises UnknownModel if it
    has none."""
    count = files.parameter_count(directory)
    if count is None:
        raise UnknownModel(f"{directory.name} holds no safetensors weights")
    return count
