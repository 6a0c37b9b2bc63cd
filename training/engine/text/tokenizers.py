"""The tokenizers of models, each loaded only once."""

import threading
from pathlib import Path

from learnloop_service.training.engine.registry.model_record import BadModelDirectory, ModelRecord, Target
from learnloop_service.training.engine.text.tokens import ChatTokenizer

_MOST = 32


class Tokenizers:
    """A thread-safe cache of the most recently used tokenizers."""

    def __init__(self) -> None:
        self._loaded: dict[Path | str, ChatTokenizer] = {}  # least recently used first
        self._lock = threading.Lock()
        self._loading: dict[Path | str, threading.Lock] = {}  # so that a slow one does not hold up the others

    def __call__(self, target: Target) -> ChatTokenizer:
        """Return the tokenizer of a target, which all checkpoints of a model share. Raises BadModelDirectory."""
        owner = target.directory if target.model is None else target.model.id
        with self._lock:
            loading = self._loading.setdefault(owner, threading.Lock())
        with loading:
            with self._lock:
                loaded = self._loaded.pop(owner, None)
            tokenizer = loaded or _tokenizer(target.directory, target.base_directory)
            with self._lock:
                self._loading.pop(owner, None)
                self._loaded[owner] = tokenizer
                while len(self._loaded) > _MOST:
                    self._loaded.pop(next(iter(self._loaded)))
            return tokenizer

    def forget(self, record: ModelRecord) -> None:
        """Drop a deleted model's tokenizer."""
        with self._lock:
            self._loaded.pop(record.id, None)


def _tokenizer(directory: Path, base: Path) -> ChatTokenizer:
    try:
        return ChatTokenizer(directory, base)
    except Exception as error:  # the library raises plain Exceptions for files that it cannot read
        raise BadModelDirectory(f"the tokenizer in {directory} cannot be loaded: {error}") from error
