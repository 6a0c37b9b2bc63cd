"""What became of a scenario over the checkpoints, and the order in which scenarios are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.statistics.trends import Trend, learned_at, order, trend

_SHARES = st.lists(st.sampled_from((None, 0.0, 0.5, 1.0)), max_size=8)


@pytest.mark.parametrize(
    ("shares", "expected", "since"),
    [
        ([1, 1, 1], Trend.KNOWN, 0),
        ([1, 0, 1], Trend.KNOWN, 2),
        ([0, 0.5, 1], Trend.LEARNED, 2),
        ([0, 1, 0, 1, 1], Trend.LEARNED, 3),
        ([0.5, None, 1, None], Trend.LEARNED, 2),
        ([0, 1, 0], Trend.LOST, None),
        ([0.5, 1, 0.5], Trend.LOST, None),
        ([0, 0, 0.5], Trend.CHANGED, None),
        ([0.5, 0.5], Trend.CHANGED, None),
        ([1, 1, 0.5], Trend.GOT_WORSE, None),
        ([0.5, 1, 0], Trend.GOT_WORSE, None),
        ([0, None, 0], Trend.NEVER, None),
        ([None, None], Trend.NEVER, None),
        ([], Trend.NEVER, None),
    ],
)
def test_a_scenario_has_one_trend(shares: list[float | None], expected: Trend, since: int | None) -> None:
    assert trend(shares) == expected
    assert learned_at(shares) == since


@given(_SHARES)
def test_what_is_right_at_the_end_is_known_or_learned_since_then(shares: list[float | None]) -> None:
    since = learned_at(shares)
    assert (since is not None) == (trend(shares) in (Trend.KNOWN, Trend.LEARNED))
    if since is not None:
        assert shares[since] == 1
        assert all(share in (None, 1) for share in shares[since:])


def test_scenarios_are_sorted_by_when_they_were_learned() -> None:
    in_order: list[tuple[float, ...]] = [(1, 1, 1), (0.5, 1, 1), (0, 1, 1), (0, 0, 1), (0, 1, 0)]
    in_order += [(0, 0.5, 0.5), (0, 0, 0.5), (1, 1, 0), (0, 0, 0)]
    backwards = in_order[::-1]
    assert sorted(backwards, key=order) == in_order
