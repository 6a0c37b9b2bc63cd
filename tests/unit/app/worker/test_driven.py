"""How long work waits for a backend that is down."""

import pytest

from learnloop_service.app.worker import driven
from learnloop_service.training.backends.base import BackendUnavailable


class _Backend:
    """A backend that is down for the first `failures` calls."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    async def work(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise BackendUnavailable(f"down at call {self.calls}")
        return "done"


async def test_work_is_repeated_until_its_backend_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driven, "_RETRY_DELAYS_S", (0.0,) * 3)
    waits: list[str] = []
    assert await driven.Patience(waits.append).retrying(_Backend(3).work) == "done"
    assert waits == ["down at call 1", "down at call 2", "down at call 3"]


async def test_after_the_last_delay_the_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driven, "_RETRY_DELAYS_S", (0.0,) * 3)
    backend = _Backend(100)
    with pytest.raises(BackendUnavailable, match="down at call 4"):
        await driven.Patience(lambda _: None).retrying(backend.work)
    assert backend.calls == 4


async def test_progress_begins_the_delays_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driven, "_RETRY_DELAYS_S", (0.0,) * 2)
    backend, patience = _Backend(4), driven.Patience(lambda _: None)

    async def work() -> str:
        if backend.calls == 2:
            patience.progressed()
        return await backend.work()

    assert await patience.retrying(work) == "done"
    assert backend.calls == 5
