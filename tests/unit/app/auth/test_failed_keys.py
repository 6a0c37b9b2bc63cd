"""Who may try another key, and when."""

from learnloop_service.app.auth.failed_keys import FailedKeys


class _Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_client_has_a_burst_and_then_its_rate() -> None:
    clock = _Clock()
    failed = FailedKeys(60, clock)
    for _ in range(30):
        assert failed.wait_s("a") == 0
        failed.note("a")
    assert failed.wait_s("a") == 1
    assert failed.wait_s("b") == 0
    clock.now += 1
    assert failed.wait_s("a") == 0
    failed.note("a")
    assert failed.wait_s("a") == 1
    clock.now += 60
    assert failed.wait_s("a") == 0


def test_it_does_not_remember_clients_without_end() -> None:
    failed = FailedKeys(60, _Clock())
    for _ in range(30):
        failed.note("first")
    assert failed.wait_s("first") > 0
    for number in range(10_000):
        failed.note(str(number))
    assert failed.wait_s("first") == 0
