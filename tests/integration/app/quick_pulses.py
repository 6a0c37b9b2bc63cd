"""A fixture for tests with a frozen process."""

from functools import partial

import pytest

from learnloop_service.app.aio.pulse import Pulse


@pytest.fixture(autouse=True)
def quick_pulses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is frozen is noticed soon, and what has little of a busy machine is not taken for it."""
    for module in (
        "learnloop_service.app.processes.engine",
        "learnloop_service.app.processes.postgres",
        "learnloop_service.app.resources",
    ):
        monkeypatch.setattr(f"{module}.Pulse", partial(Pulse, period_s=0.05, deadline_s=8.0))
