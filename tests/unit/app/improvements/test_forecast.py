"""What evaluations and trainings are expected to take."""

from dataclasses import replace
from typing import Any

import pytest

from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.improvements.forecast import EarlierRun, known_gain, too_dear, training
from tests.fakes.stored_request import stored_request
from tests.unit.app.improvements.rows import record, row

PILOT = {"seconds": 0.1, "tokens": 500}
RUN = EarlierRun("mail", 0.9, imitates_only=False, evaluated=1e-4, trained=4e-4, imitated=0.05)
HELD_OUT = {"scenarios": 10, "test_scenarios": 0, "samples": 1, "every": 2}
GRPO = stored_request(
    environment={"name": "mail"},
    iterations=4,
    groups_per_iteration=3,
    rollouts_per_group=4,
    evaluation=HELD_OUT,
)
"""60 rollouts are evaluated, and 48 are trained on."""
WARM_START = {"demonstrations": {"sha256": "a", "count": 30}, "epochs": 2, "iterations": 2}
IMITATION = GRPO | {"iterations": 0, "warm_start": WARM_START}
"""40 rollouts are evaluated, and 60 times a demonstration is trained on."""


def minutes(seconds: float, spread: float) -> Any:
    return pytest.approx((seconds / spread / 60, seconds * spread / 60))


def test_dollars_are_those_of_the_machine() -> None:
    assert training(Rung.GRPO, GRPO, PILOT, []).usd is None
    seconds = 0.1 * (60 + 1.5 * 48)
    assert training(Rung.GRPO, GRPO, PILOT, [], 3600 / seconds).usd == pytest.approx((0.5, 2.0))


def test_training_takes_what_it_took_earlier_runs_on_the_base() -> None:
    forecast = training(Rung.GRPO, GRPO, PILOT, [RUN])
    assert forecast.minutes == minutes(60 * 500e-4 + 48 * 500 * 4e-4, 3**0.5)
    assert forecast.source == "by 1 earlier run on this base"
    assert training(Rung.IMITATION, IMITATION, PILOT, [RUN]).minutes == minutes(40 * 0.05 + 60 * 0.05, 3**0.5)


def test_of_runs_that_differ_the_median_is_expected() -> None:
    paces = [replace(RUN, trained=4e-4 * factor) for factor in (1 / 1.6, 1.0, 5.0)]
    low, high = training(Rung.GRPO, GRPO, PILOT, paces).minutes
    assert (low, high) == training(Rung.GRPO, GRPO, PILOT, [RUN]).minutes
    assert high / low <= 3.000001


def test_without_earlier_runs_the_range_is_a_factor_of_two_each_way() -> None:
    forecast = training(Rung.GRPO, GRPO, PILOT, [])
    assert forecast.minutes == minutes(0.1 * (60 + 1.5 * 48), 2.0)
    assert "without an earlier run" in forecast.source
    assert forecast.gain is None
    only_imitates = replace(RUN, imitates_only=True, trained=None)
    assert "without an earlier run" in training(Rung.GRPO, GRPO, PILOT, [only_imitates]).source


def test_work_that_no_earlier_run_did_is_at_the_pace_of_the_pilot() -> None:
    run = replace(RUN, evaluated=None)
    expected = 60 * 0.1 + 48 * 500 * 4e-4
    assert training(Rung.GRPO, GRPO, PILOT, [run]).minutes == minutes(expected, 3**0.5)


def test_the_known_gain_is_that_of_runs_of_the_same_kind() -> None:
    reached = [0.97, 0.81, 0.9, 0.88]
    runs = [replace(RUN, success=success) for success in reached]
    others = [replace(RUN, environment="sales"), replace(RUN, success=None), replace(RUN, imitates_only=True)]
    assert known_gain(Rung.GRPO, [*runs, *others], "mail") == "4 runs: 81 to 97%"
    assert known_gain(Rung.IMITATION, [*runs, *others], "mail") == "1 run: 90%"
    assert known_gain(Rung.GRPO, runs, "desk") is None


def test_a_model_whose_answers_cost_more_than_training_is_not_compared() -> None:
    expected = {Rung.GRPO: training(Rung.GRPO, GRPO, PILOT, [], 3600 / (0.1 * (60 + 1.5 * 48)))}
    screened = row(1, Rung.MODEL, CandidateState.PROPOSED, evidence={"training": {"usd": 0.01}})
    dear = too_dear(record(screened, answers=1_000), {}, expected)
    assert dear == {Rung.MODEL: "1,000 answers of it would cost $10.00, and training costs $2.00 at most."}
    unscreened = row(1, Rung.MODEL, CandidateState.PROPOSED)
    for candidate, answers in ((screened, 200), (screened, None), (unscreened, 1_000)):
        assert too_dear(record(candidate, answers=answers), {}, expected) == {}
