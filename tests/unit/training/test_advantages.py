"""GRPO's advantages."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.advantages import advantages, differ


def test_they_are_scaled_by_the_groups_deviation() -> None:
    deviation = math.sqrt(2 / 3)
    assert advantages([0.0, 1.0, 2.0]) == pytest.approx([-1 / deviation, 0, 1 / deviation], abs=1e-5)
    assert advantages([0.0, 1.0, 2.0], scale=False) == [-1, 0, 1]


def test_a_small_spread_is_scaled_down_and_a_large_one_is_not() -> None:
    alike, apart = [1.76] * 6 + [1.75] * 2, [1.76] * 6 + [-1.0] * 2
    assert advantages(alike)[-1] == pytest.approx(-1.7316, abs=1e-4)
    assert advantages(alike, least_spread=0.08)[-1] == pytest.approx(-0.0075 / 0.08, abs=1e-4)
    assert advantages(apart, least_spread=0.08) == advantages(apart)
    assert advantages(alike, scale=False, least_spread=0.08) == advantages(alike, scale=False)


def test_equal_rewards_have_none_however_their_mean_is_rounded() -> None:
    assert sum([0.1] * 3) / 3 != 0.1
    assert advantages([0.1] * 3) == [0, 0, 0]
    assert advantages([0.1] * 3, scale=False) == [0, 0, 0]


def test_one_reward_has_nothing_to_be_compared_with() -> None:
    assert advantages([0.7]) == [0]
    assert advantages([]) == []


ROUNDED = [
    [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1],
    [0.6, 0.6 + 1e-12, 0.6, 0.6],
    [-0.7, math.nextafter(-0.7, 0)],
    [1e6, 1e6 + 1e-4],
    [1e-200, math.nextafter(1e-200, 1)],
    [0.0, -0.0],
]
DIFFERENT = [[1e-7, 2e-7], [1e6, 1e6 + 1], [0.0, 1e-30], [-1e9, 1e9], [0.5, 0.5 + 1e-8], [1e-300, 0.0]]


@pytest.mark.parametrize("rewards", ROUNDED)
def test_rewards_that_differ_by_rounding_are_equal(rewards: list[float]) -> None:
    assert not differ(rewards)
    assert advantages(rewards) == advantages(rewards, scale=False) == [0.0] * len(rewards)


@pytest.mark.parametrize("rewards", DIFFERENT)
def test_small_and_large_rewards_that_differ_teach(rewards: list[float]) -> None:
    assert differ(rewards)
    low, high = advantages([min(rewards), max(rewards)], scale=False)
    assert low < 0 < high


@given(
    st.lists(st.integers(-1000, 1000), min_size=2, max_size=8),
    st.floats(1e-250, 1e250),
    st.randoms(use_true_random=False),
)
def test_the_order_of_addition_and_the_scale_make_no_difference(parts: list[int], scale: float, draw: Random) -> None:
    """Every reward is the sum of the same parts in another order and of a part that no rounding can reach."""
    sums = []
    for _ in range(4):
        draw.shuffle(parts)
        sums.append(sum(part * 0.1 * scale for part in parts) + 10_000 * scale)
    assert advantages(sums) == [0.0] * 4
    assert differ([*sums, sums[0] + scale])
