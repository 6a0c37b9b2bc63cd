"""Estimates of what another checkpoint would have earned, against worlds whose truth is known."""

import math
from random import Random
from statistics import fmean

import pytest

from learnloop_service.training.statistics.off_policy import LEAST_SHOWN, ScoredAnswer, effective_share, gain


@pytest.mark.parametrize(
    ("log_ratios", "share"),
    [
        ([], 0.0),
        ([0.0], 1.0),
        ([-3.0] * 7, 1.0),
        ([0.0, -1e9], 0.5),
        ([800.0, 0.0, 0.0, 0.0], 0.25),  # exp(800) is no float
        ([math.log(3), 0.0], 16 / 20),
    ],
)
def test_equal_weights_are_worth_all_answers(log_ratios: list[float], share: float) -> None:
    assert effective_share(log_ratios) == pytest.approx(share)


def _answers(random: Random, count: int, shift: float) -> list[ScoredAnswer]:
    """Answers of a start that chooses one of two equally often, of which the first succeeds in 70% and the other in
    30%; the new checkpoint chooses the first one with probability 0.5 + shift."""
    answers = []
    for _ in range(count):
        first = random.random() < 0.5
        ratio = math.log((0.5 + shift if first else 0.5 - shift) / 0.5)
        answers.append(ScoredAnswer(ratio, float(random.random() < (0.7 if first else 0.3)), 0.5))
    return answers


@pytest.mark.parametrize("shift", [-0.2, 0.0, 0.1])
def test_the_interval_holds_as_often_as_it_says(shift: float) -> None:
    random, truth = Random(7), 0.4 * shift
    estimates = [gain(_answers(random, 300, shift)) for _ in range(400)]
    held = fmean(estimate is not None and estimate[1] - 1e-12 <= truth <= estimate[2] + 1e-12 for estimate in estimates)
    assert held > 0.86 if shift else held == 1.0
    assert fmean(estimate[0] for estimate in estimates if estimate) == pytest.approx(truth, abs=0.005)


def test_what_cannot_be_shown_is_not_said() -> None:
    answers = _answers(Random(1), LEAST_SHOWN, 0.1)
    assert gain(answers) is not None
    assert gain(answers[1:]) is None
    assert gain([*answers, *[ScoredAnswer(9.0, 1.0, 0.5)]]) is None, "one answer weighs more than all others"


def test_one_answer_has_a_bounded_weight() -> None:
    answers = [ScoredAnswer(0.0, 1.0, 0.5)] * 10_000
    estimate = gain([*answers, ScoredAnswer(3.0, 1.0, 0.5)])
    assert estimate is not None
    assert estimate[0] == pytest.approx(9 * 0.5 / 10_001)
