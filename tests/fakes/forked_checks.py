"""The processes that check and probe base models, forked from one that has their imports, which take seconds.

A fork that a signal ends seems killed, so what exceeds a limit is tested with real processes.
"""

from collections.abc import Iterator

import pytest

from learnloop_service.training.bases import child_processes
from tests.fakes.forked_module import ForkedModule

_PRELOADED = ("learnloop_service.training.engine.examination.probe_child", "tests.fakes.preloaded_engine")


@pytest.fixture(scope="session")
def checking(fork_server: None) -> Iterator[ForkedModule]:
    """The process to fork."""
    with ForkedModule("learnloop_service.training.engine.examination.check_child", *_PRELOADED) as forked:
        yield forked


@pytest.fixture
def forked_checks(checking: ForkedModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes in which this test's process checks and probes base models."""
    monkeypatch.setattr(child_processes, "_RUN_MODULE", checking.run_module)
