"""The share detector: rare false alarms, quick names, and clearing."""

from random import Random

import pytest

from learnloop_service.training.diagnosis.shares import SymptomShares, share_spans


def _observed(iterations: int, groups: int, rollouts: int, share: float, seed: int) -> list[SymptomShares]:
    random = Random(seed)
    return [
        SymptomShares(
            number, tuple(sum(random.random() < share for _ in range(rollouts)) / rollouts for _ in range(groups))
        )
        for number in range(1, iterations + 1)
    ]


def test_healthy_runs_at_their_bound_raise_almost_no_alarm() -> None:
    alarms = sum(bool(share_spans(_observed(14, 8, 8, 0.4, seed), 0.4, 14)) for seed in range(500))
    assert alarms <= 2


@pytest.mark.parametrize(
    ("share", "bound", "groups", "within"), [(0.95, 0.4, 8, 3), (1.0, 0.1, 8, 1), (1.0, 0.6, 8, 3), (0.95, 0.4, 4, 5)]
)
def test_a_fault_of_twice_its_bound_is_named_within_a_few_iterations(
    share: float, bound: float, groups: int, within: int
) -> None:
    for seed in range(50):
        healthy = _observed(4, groups, 8, bound / 2, seed)
        faulty = [
            SymptomShares(observed.iteration + 4, observed.shares)
            for observed in _observed(10, groups, 8, share, seed + 1)
        ]
        [span] = share_spans([*healthy, *faulty], bound, 14)
        assert 5 <= span.named < 5 + within
        assert abs(span.first - 5) <= 1


def test_a_fault_clears_after_three_good_iterations_and_is_harder_to_name() -> None:
    bad, good = (1.0,) * 8, (0.0,) * 8
    iterations = [bad, bad, good, good, good, bad, bad]
    first, second = share_spans([SymptomShares(number, shares) for number, shares in enumerate(iterations, 1)], 0.1, 20)
    assert first.first == 1
    assert first.named == 1
    assert first.cleared == 5
    assert second.first == 6
    assert second.cleared is None


def test_more_iterations_than_planned_stake_no_more_than_one() -> None:
    assert share_spans(_observed(60, 8, 8, 0.05, 3), 0.1, 10) == []


def test_shares_of_what_is_drawn_more_often_count_less() -> None:
    """Most groups show the symptom because they were drawn for it: of all, a tenth does."""
    shares, weights = (1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, 27.0)
    selected = [SymptomShares(iteration, shares, weights) for iteration in range(1, 41)]
    assert not share_spans(selected, 0.3, 40)
    assert share_spans([SymptomShares(one.iteration, shares) for one in selected], 0.3, 40)
    assert share_spans([SymptomShares(one.iteration, shares, (2.0,) * 4) for one in selected], 0.3, 40) == share_spans(
        [SymptomShares(one.iteration, shares) for one in selected], 0.3, 40
    )
