"""The command `learnloop` in a process of its own, which is forked: its imports take seconds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fakes.forked_module import ForkedModule

_PRELOADED = ("app.cli.main", "app.main")
_copied: dict[int, ForkedModule] = {}
"""By the process that asked: a forked one does not own its parent's."""


def learnloop(*arguments: str) -> list[str]:
    """What starts it. Not for tests that look at its process: a small one stands for it."""
    process = os.getpid()
    if process not in _copied:
        _copied[process] = ForkedModule("app.cli", *_PRELOADED)
    return _copied[process].command(*arguments)


@contextmanager
def ended_after() -> Iterator[None]:
    """End what this process has started for it."""
    yield
    if copied := _copied.pop(os.getpid(), None):
        copied.close()
