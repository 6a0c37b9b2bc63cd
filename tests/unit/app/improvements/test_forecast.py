"""What evaluations and trainings are expected to take."""

from dataclasses import replace
from typing import Any

import pytest

from learnloop_service.app.domain.improvement_state import Rung
from learnloop_service.app.improvements.forecast import (
    EarlierRun,
    RolloutPrice,
    TrainingWork,
    known_gain,
    training,
    work_of,
)
from tests.fakes.stored_request import stored_request

PRICE = RolloutPrice(seconds=0.1, tokens=500)
RUN = EarlierRun("mail", 0.9, imitates_only=False, evaluated=1e-4, trained=4e-4, imitated=0.05)
GRPO = TrainingWork(evaluated=200, trained=600)
IMITATION = TrainingWork(evaluated=200, imitated=400)


def minutes(seconds: float, spread: float) -> Any:
    return pytest.approx((seconds / spread / 60, seconds * spread / 60))


@pytest.mark.parametrize(
    ("usd", "price_per_hour", "expected"), [(None, None, None), (0.01, None, 3.6), (None, 100, 1), (0.01, 100, 4.6)]
)
def test_dollars_are_those_of_calls_and_of_the_machine(
    usd: float | None, price_per_hour: float | None, expected: float | None
) -> None:
    price = replace(PRICE, usd=usd)
    forecast = training(Rung.GRPO, TrainingWork(360), price, [], "mail", price_per_hour)
    assert forecast.usd == (None if expected is None else pytest.approx((expected / 2, expected * 2)))


def test_training_takes_what_it_took_earlier_runs_on_the_base() -> None:
    forecast = training(Rung.GRPO, GRPO, PRICE, [RUN], "mail")
    assert forecast.minutes == minutes(200 * 500e-4 + 600 * 500 * 4e-4, 3**0.5)
    assert forecast.source == "by 1 earlier run on this base"
    assert training(Rung.IMITATION, IMITATION, PRICE, [RUN], "mail").minutes == minutes(200 * 0.05 + 400 * 0.05, 3**0.5)


def test_of_runs_that_differ_the_median_is_expected() -> None:
    paces = [replace(RUN, evaluated=None, trained=4e-4 * factor) for factor in (1 / 1.6, 1.0, 5.0)]
    low, high = training(Rung.GRPO, TrainingWork(0, 600), PRICE, paces, "mail").minutes
    assert (low, high) == minutes(120, 3**0.5)
    assert high / low <= 3.000001


def test_without_earlier_runs_the_range_is_a_factor_of_two_each_way() -> None:
    forecast = training(Rung.GRPO, GRPO, PRICE, [], "mail")
    assert forecast.minutes == minutes(0.1 * (200 + 1.5 * 600), 2.0)
    assert "without an earlier run" in forecast.source
    assert forecast.gain is None
    only_imitates = replace(RUN, imitates_only=True, trained=None)
    assert "without an earlier run" in training(Rung.GRPO, GRPO, PRICE, [only_imitates], "mail").source


def test_work_that_no_earlier_run_did_is_at_the_pace_of_the_pilot() -> None:
    run = replace(RUN, evaluated=None, imitated=None)
    forecast = training(Rung.GRPO, TrainingWork(100, 100, 100), PRICE, [run], "mail")
    low, high = forecast.minutes
    assert (low * high) ** 0.5 * 60 == pytest.approx(100 * 0.1 + 100 * 0.15 + 100 * 0.1, rel=0.5)


def test_the_known_gain_is_that_of_runs_of_the_same_kind() -> None:
    reached = [0.97, 0.81, 0.9, 0.88]
    runs = [replace(RUN, success=success) for success in reached]
    others = [replace(RUN, environment="sales"), replace(RUN, success=None), replace(RUN, imitates_only=True)]
    assert known_gain(Rung.GRPO, [*runs, *others], "mail") == "4 runs: 81 to 97%"
    assert known_gain(Rung.IMITATION, [*runs, *others], "mail") == "1 run: 90%"
    assert known_gain(Rung.GRPO, runs, "desk") is None


def test_the_work_of_a_run_is_counted_from_its_request() -> None:
    held_out = {"scenarios": 10, "test_scenarios": 0, "samples": 1, "every": 2}
    groups = {"groups_per_iteration": 3, "rollouts_per_group": 4, "evaluation": held_out}
    assert work_of(stored_request(**groups), 4) == TrainingWork(evaluated=20 + 2 * 20, trained=48)
    warm_start = {"demonstrations": {"sha256": "a", "count": 30}, "epochs": 2, "iterations": 2}
    assert work_of(stored_request(**groups, warm_start=warm_start), 0) == TrainingWork(evaluated=20 + 20, imitated=60)
