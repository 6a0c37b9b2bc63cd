"""GRPO's advantages."""

import math

import pytest

from training.advantages import advantages


def test_they_are_scaled_by_the_groups_deviation() -> None:
    deviation = math.sqrt(2 / 3)
    assert advantages([0.0, 1.0, 2.0]) == pytest.approx([-1 / deviation, 0, 1 / deviation], abs=1e-5)
    assert advantages([0.0, 1.0, 2.0], scale=False) == [-1, 0, 1]


def test_equal_rewards_have_none_however_their_mean_is_rounded() -> None:
    assert sum([0.1] * 3) / 3 != 0.1
    assert advantages([0.1] * 3) == [0, 0, 0]
    assert advantages([0.1] * 3, scale=False) == [0, 0, 0]


def test_one_reward_has_nothing_to_be_compared_with() -> None:
    assert advantages([0.7]) == [0]
    assert advantages([]) == []
