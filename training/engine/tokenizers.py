"""The tokenizers of models, each loaded once."""

import threading
from pathlib import Path

from training.engine.registry.model_record import BadModelDirectory, ModelRecord, Target
from training.engine.tokens import ChatTokenizer

_MOST = 32


class Tokenizers:
    """Those that were used last. May be used from any thread."""

    def __init__(self) -> None:
        self._loaded: dict[Path | str, ChatTokenizer] = {}  # the least recently used first
        self._lock = threading.Lock()

    def __call__(self, target: Target) -> ChatTokenizer:
        """The tokenizer of a target; all checkpoints of a model share one. Raises BadModelDirectory."""
        owner = target.directory if target.model is None else target.model.id
        with self._lock:
            tokenizer = self._loaded.pop(owner, None) or _tokenizer(target.directory)
            self._loaded[owner] = tokenizer
            while len(self._loaded) > _MOST:
                self._loaded.pop(next(iter(self._loaded)))
            return tokenizer

    def forget(self, record: ModelRecord) -> None:
        """A deleted model's."""
        with self._lock:
            self._loaded.pop(record.id, None)


def _tokenizer(directory: Path) -> ChatTokenizer:
    try:
        return ChatTokenizer(directory)
    except Exception as error:  # the library raises plain Exceptions for files that it cannot read
        raise BadModelDirectory(f"the tokenizer in {directory} cannot be loaded: {error}") from error
