"""The command `learnloop` in its own process. The process is forked, because its imports take seconds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fakes.forked_module import ForkedModule

_PRELOADED = ("learnloop_service.app.cli.main", "learnloop_service.app.main")
_copied: dict[int, ForkedModule] = {}
"""The module by the id of the process that uses it. A forked process does not own its parent's."""


def learnloop(*arguments: str) -> list[str]:
    """Return the command line that starts it. Not for tests that inspect the process, which is a small stand-in."""
    process = os.getpid()
    if process not in _copied:
        _copied[process] = ForkedModule("learnloop_service.app.cli", *_PRELOADED)
    return _copied[process].command(*arguments)


@contextmanager
def ended_after() -> Iterator[None]:
    """Close this process's forked module after the block."""
    yield
    if copied := _copied.pop(os.getpid(), None):
        copied.close()
