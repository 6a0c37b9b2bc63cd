"""What other scores would have changed, on runs with a planted change, and the noise of judges with a known one."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.operations.start.rejudging import expected_cost
from learnloop_service.training.advantages import advantages
from learnloop_service.training.statistics.rejudging import (
    MATTERS,
    RejudgedGroup,
    Scored,
    changes,
    first_changed,
    noise,
)

GROUP = 8


def _scored(scores: list[float]) -> list[Scored]:
    return [
        Scored(score, advantage, score >= 0.5, score)
        for score, advantage in zip(scores, advantages(scores), strict=True)
    ]


def _run(again: Callable[[int, float, Random], float], repeats: int = 1, iterations: int = 6) -> list[RejudgedGroup]:
    """A run of four groups an iteration, whose scores `again` computes anew."""
    draw, groups = Random(3), []
    for iteration in range(1, iterations + 1):
        for _ in range(4):
            scores = [draw.random() for _ in range(GROUP)]
            new = [[again(iteration, score, draw) for score in scores] for _ in range(repeats)]
            groups.append(RejudgedGroup(iteration, _scored(scores), [_scored(rejudged) for rejudged in new]))
    return groups


def test_a_planted_change_is_found_where_it_begins() -> None:
    groups = _run(lambda iteration, score, _: 1 - score if iteration >= 3 else score)
    assert first_changed(groups) == first_changed(groups, MATTERS) == 3
    assert changes(groups).flipped == pytest.approx(4 / 6)
    assert changes([group for group in groups if group.iteration < 3]).flipped == 0.0
    late = changes([group for group in groups if group.iteration >= 3])
    assert late.flipped == 1.0
    assert late.correlation == pytest.approx(-1.0)


@given(st.floats(0.1, 10), st.floats(-5, 5))
def test_rewards_that_are_scaled_or_shifted_change_nothing_that_matters(factor: float, shift: float) -> None:
    groups = _run(lambda _, score, __: factor * score + shift)
    changed = changes(groups)
    assert changed.flipped == 0.0
    assert changed.correlation == pytest.approx(1.0)
    assert first_changed(groups, MATTERS) is None


def test_the_same_scores_differ_in_no_bit() -> None:
    groups = _run(lambda _, score, __: score)
    assert first_changed(groups) is None
    assert first_changed(groups, MATTERS) is None
    assert noise(groups) is None


def test_signals_that_come_and_go_are_counted() -> None:
    alike, differing = [0.5] * GROUP, [number / GROUP for number in range(GROUP)]
    groups = [
        RejudgedGroup(1, _scored(alike), [_scored(differing)]),
        RejudgedGroup(1, _scored(differing), [_scored(alike)]),
        RejudgedGroup(2, _scored(differing), [_scored(alike)]),
    ]
    changed = changes(groups)
    assert changed.gained == 1
    assert changed.lost == 2


@pytest.mark.parametrize("deviation", [0.02, 0.1, 0.3])
def test_a_judges_known_noise_is_measured(deviation: float) -> None:
    """Within 10%; the scores are uniform in [0, 1], whose variance is 1/12."""
    groups = _run(lambda _, score, draw: score + draw.gauss(0, deviation), repeats=4, iterations=40)
    measured = noise(groups)
    assert measured is not None
    assert measured.deviation == pytest.approx(deviation, rel=0.1)
    assert measured.icc == pytest.approx((1 / 12) / (1 / 12 + deviation**2), abs=0.03)
    floors = [noise(_run(lambda _, score, draw: score + draw.gauss(0, deviation), 2, 40)), measured]
    shares = [estimate.floor for estimate in floors if estimate is not None and estimate.floor is not None]
    assert shares[0] == pytest.approx(shares[1], abs=0.03)


def test_a_rollout_without_a_score_counts_as_no_noise() -> None:
    stored = _scored([0.0, 1.0])
    unscored = Scored(None, None, False, None)
    group = RejudgedGroup(1, stored, [[stored[0], unscored], [stored[0], stored[1]]])
    measured = noise([group])
    assert measured is not None
    assert measured.deviation == 0.0
    assert measured.icc is None
    assert noise([RejudgedGroup(1, stored, [[unscored, unscored]] * 2)]) is None


def test_the_expected_cost_is_that_of_earlier_calls() -> None:
    draw = Random(5)
    prices = [draw.uniform(0.001, 0.003) for _ in range(400)]
    inside = 0
    for _ in range(200):
        cost = expected_cost(draw.sample(prices, 100), 64)
        assert cost.low is not None
        assert cost.high is not None
        inside += cost.low <= sum(draw.choices(prices, k=64)) <= cost.high
    assert inside >= 165
    assert expected_cost([], 10).usd is None
    assert "not known" in expected_cost([0.1, None], 10).reason
