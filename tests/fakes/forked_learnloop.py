"""The command `learnloop` in its own process. The process is forked, because its imports take seconds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fakes.forked_module import ForkedModule

_copied: dict[int, ForkedModule] = {}
"""The module by the id of the process that uses it. A forked process does not own its parent's."""


def learnloop(*arguments: str) -> list[str]:
    """Return the command line that starts it. Not for tests that inspect the process, which is a small stand-in."""
    return _forked().command(*arguments)


def run_module() -> list[str]:
    """Return what stands for `python -m` in a process that has imported the service, an engine and ART."""
    return _forked().run_module


@contextmanager
def services() -> Iterator[None]:
    """Within it, fork the services that this process starts, and with them their engines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", str(_forked().python))
        yield


@contextmanager
def ended_after() -> Iterator[None]:
    """Close this process's forked module after the block."""
    yield
    if copied := _copied.pop(os.getpid(), None):
        copied.close()


def _forked() -> ForkedModule:
    process = os.getpid()
    if process not in _copied:
        _copied[process] = ForkedModule("learnloop_service.app.cli", "tests.fakes.preloaded_service")
    return _copied[process]
