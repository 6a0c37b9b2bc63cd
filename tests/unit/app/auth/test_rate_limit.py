"""Token buckets on a clock that the test moves."""

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.auth.rate_limit import CallerRateLimit


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_and_then_the_rate() -> None:
    clock = Clock()
    limit = CallerRateLimit(per_s=2, burst=3, clock=clock)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.take("a") == 0.5  # asking costs nothing
    assert limit.take("b") == 0
    clock.now += 0.25
    assert limit.take("a") == 0.25
    clock.now += 0.25
    assert limit.take("a") == 0
    clock.now += 1_000
    assert [limit.take("a") > 0 for _ in range(4)] == [False, False, False, True]


@given(
    st.floats(0.1, 100),
    st.integers(1, 50),
    st.lists(st.floats(0, 5), max_size=200),
)
def test_never_more_than_the_burst_and_the_rate_allow(per_s: float, burst: int, steps: list[float]) -> None:
    clock = Clock()
    limit = CallerRateLimit(per_s, burst, clock)
    through = 0
    for step in steps:
        clock.now += step
        through += limit.take("a") == 0
    assert through <= burst + sum(steps) * per_s + 1e-6
