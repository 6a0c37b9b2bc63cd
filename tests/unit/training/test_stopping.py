"""The rules of `stop_when` on simulated runs: the draws are seeded."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from learnloop_service.training.statistics.learning_curve import CurvePoint
from learnloop_service.training.stopping import RISE, Stopping
from learnloop_service.training.types import EvaluationConfig, RunConfig, StopWhen

COST = {"minutes": 1.0, "tokens": 50_000.0, "usd": 0.5}


def ended(
    seed: int,
    success: Callable[[int], float],
    rule: StopWhen,
    *,
    iterations: int = 30,
    every: int = 2,
    scenarios: int = 64,
) -> tuple[int, str] | None:
    """The iteration after which a simulated run ends and why; None if it has all. Scenarios differ in difficulty."""
    draw = np.random.default_rng(seed)
    config = RunConfig(iterations=iterations, evaluation=EvaluationConfig(every, scenarios, samples=2), stop_when=rule)
    stopping, easier = Stopping(config), draw.uniform(-1, 1, scenarios)
    easier -= easier.mean()
    for iteration in range(iterations):
        share = success(iteration)
        held_out: Mapping[str, float] | None = None
        if iteration % every == 0:
            rates = draw.binomial(2, np.clip(share + easier * min(share, 1 - share), 0, 1)) / 2
            held_out = {str(number): float(rate) for number, rate in enumerate(rates)}
        trained = draw.binomial(64, share) / 64 if iteration else None
        stopping.add(CurvePoint(iteration, trained, 64 if iteration else 0, held_out))
        if (reason := stopping.reason) is not None:
            return iteration, reason
        stopping.add(CurvePoint(iteration, trained, 64 if iteration else 0, held_out, COST))
    return None


def share_ended(success: Callable[[int], float], rule: StopWhen, runs: int = 40) -> float:
    return sum(ended(seed, success, rule) is not None for seed in range(runs)) / runs


def test_a_target_just_missed_ends_at_most_one_run_in_twenty_however_often_it_is_looked_at() -> None:
    assert share_ended(lambda _: 0.8, StopWhen(target=0.8)) <= 0.05


def test_a_target_that_is_reached_is_shown() -> None:
    assert share_ended(lambda _: 0.95, StopWhen(target=0.8)) == 1
    rising = [ended(seed, lambda iteration: min(0.95, 0.1 * iteration), StopWhen(target=0.8)) for seed in range(20)]
    assert all(end is not None and end[0] >= 8 for end in rising)


def test_one_lucky_evaluation_of_few_scenarios_shows_no_target() -> None:
    stopping = Stopping(RunConfig(evaluation=EvaluationConfig(every=4), stop_when=StopWhen(target=0.9)))
    stopping.add(CurvePoint(0, held_out=dict.fromkeys("abcdefgh", 0.0)))
    stopping.add(CurvePoint(4, 0.9, 64, dict.fromkeys("abcdefgh", 1.0)))
    assert stopping.reason is None


def test_success_that_rises_at_the_pace_looks_level_in_at_most_one_run_in_twenty() -> None:
    assert share_ended(lambda iteration: 0.3 + RISE * iteration / 30, StopWhen(plateau=True)) <= 0.05


def test_a_plateau_is_shown_and_not_before_it_begins() -> None:
    ends = [ended(seed, lambda iteration: 0.6, StopWhen(plateau=True)) for seed in range(20)]
    assert sum(end is not None for end in ends) >= 18
    late = [
        ended(seed, lambda iteration: min(0.8, 0.04 * iteration), StopWhen(plateau=True), iterations=60)
        for seed in range(20)
    ]
    assert all(end is None or end[0] >= 20 for end in late)


def test_a_point_that_costs_more_than_it_is_worth_ends_a_run_and_a_cheap_one_does_not() -> None:
    flat = ended(1, lambda iteration: min(0.9, 0.2 + 0.1 * iteration), StopWhen(no_gain={"tokens_per_point": 60_000.0}))
    assert flat is not None
    assert flat[1] == "no_gain"
    assert flat[0] > 6
    rising = ended(1, lambda iteration: 0.05 + 0.03 * iteration, StopWhen(no_gain={"tokens_per_point": 60_000.0}))
    assert rising is None
    unknown = {"usd_per_point": None, "minutes_per_point": 1e9}
    assert ended(1, lambda _: 0.5, StopWhen(no_gain=unknown)) is None


@pytest.mark.parametrize("rule", [StopWhen(target=0.5), StopWhen(plateau=True)])
def test_a_run_without_evaluations_goes_on(rule: StopWhen) -> None:
    stopping = Stopping(RunConfig(stop_when=rule), [CurvePoint(0), CurvePoint(1, 1.0, 64), CurvePoint(2, 1.0, 64)])
    assert stopping.reason is None
    assert stopping.fitted() is None
