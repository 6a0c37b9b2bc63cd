"""What the benchmark of learning from served answers records of the answers, and which ones it learns from."""

from random import Random

from benchmarks.learning.served import ARMS, Attempt, ServedAnswer, ServedArm, chosen, recorded
from learnloop_service.training.engine.trainer.trajectories import TrainingTrajectory

RIGHT, WRONG = (Attempt(TrainingTrajectory((), 0.0), success) for success in (True, False))


def test_right_answers_are_reported_more_often_and_never_as_wrong() -> None:
    answers = recorded([RIGHT, WRONG] * 2_000, bot=False, rng=Random(0))
    right, wrong = answers[::2], answers[1::2]
    assert {answer.outcome for answer in right} == {1.0, None}
    assert {answer.outcome for answer in wrong} == {0.0, None}
    assert 0.8 < sum(answer.outcome is not None for answer in right) / 2_000 < 0.9
    assert 0.5 < sum(answer.outcome is not None for answer in wrong) / 2_000 < 0.6


def test_the_bot_asks_a_third_and_is_content_and_the_bound_keeps_three_of_its_answers() -> None:
    answers = recorded([WRONG] * 300, bot=True, rng=Random(0))
    assert sum(answer.outcome == 1.0 for answer in answers) == 100
    bounded = chosen(answers, ServedArm(), Random(0))
    assert sum(outcome for _, outcome in bounded) == 3.0
    unbounded = chosen(answers, ARMS["bot without bound"], Random(0))
    assert sum(outcome for _, outcome in unbounded) == 100.0


def test_silence_counts_nothing_unless_it_is_dropped() -> None:
    answers = [ServedAnswer(RIGHT, 1, 1.0), ServedAnswer(WRONG, 2, None)]
    assert sorted(outcome for _, outcome in chosen(answers, ServedArm(), Random(0))) == [0.0, 1.0]
    assert [outcome for _, outcome in chosen(answers, ARMS["silent dropped"], Random(0))] == [1.0]


def test_the_answers_to_held_out_users_are_not_trained_on() -> None:
    answers = [ServedAnswer(RIGHT, user, 1.0) for user in range(1_000)]
    assert 550 < len(chosen(answers, ARMS["three fifths"], Random(0))) < 650
