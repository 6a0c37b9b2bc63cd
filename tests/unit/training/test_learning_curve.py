"""Forecasts of a run's success and costs."""

from collections.abc import Callable

import numpy as np

from learnloop_service.training.statistics.learning_curve import CurvePoint, FittedCurve, extrapolated, interval


def points_of(success: Callable[[int], float], until: int, every: int = 2) -> list[CurvePoint]:
    draw = np.random.default_rng(7)
    return [
        CurvePoint(
            iteration,
            float(draw.binomial(128, success(iteration)) / 128) if iteration else None,
            128 if iteration else 0,
            {str(n): float(draw.binomial(2, success(iteration)) / 2) for n in range(64)}
            if iteration % every == 0
            else None,
        )
        for iteration in range(until + 1)
    ]


def sigmoid(iteration: int) -> float:
    return float(0.9 / (1 + np.exp(1.5 - 0.25 * iteration)))


def test_a_rising_run_is_forecast_closely_and_equally_each_time() -> None:
    curves = [FittedCurve(points_of(sigmoid, 15), 30, 8, 2) for _ in range(2)]
    expected, low, high = interval(curves[0].evaluation(30))
    assert abs(expected / sigmoid(30) - 1) < 0.2
    assert low < expected < high
    assert (expected, low, high) == interval(curves[1].evaluation(30))


def test_the_interval_narrows_with_the_run() -> None:
    def width(until: int) -> float:
        _, low, high = interval(FittedCurve(points_of(sigmoid, until), 30, 8, 2).success(30))
        return high - low

    assert width(24) < width(8)


def test_a_run_that_learns_nothing_gains_nothing() -> None:
    flat = FittedCurve(points_of(lambda _: 0.4, 24), 30, 8, 2)
    rising = FittedCurve(points_of(sigmoid, 6), 30, 8, 2)
    assert flat.gain(6) < 0.01 < rising.gain(20)


def test_thousands_of_iterations_are_no_problem() -> None:
    many = points_of(lambda iteration: 0.2 + 0.6 * iteration / 3_000, 3_000, every=50)
    _, low, high = interval(FittedCurve(many, 4_000, 8, 2).success(4_000))
    assert 0 <= low < high <= 1


def test_costs_continue_their_trend_and_one_that_waited_says_nothing() -> None:
    ahead = [(time, 1.0) for time in range(11, 21)]
    expected, low, high = interval(extrapolated(dict.fromkeys(range(2, 11), 10.0) | {5: 300.0}, ahead))
    assert low < 100 < high
    assert abs(expected - 100) < 10
    growing = {time: 10.0 * time**0.3 for time in range(2, 11)}
    assert interval(extrapolated(growing, ahead))[0] > 1.15 * sum(growing[10] * 0.9 for _ in ahead)


def test_two_costs_are_enough_and_leave_a_wide_interval() -> None:
    expected, low, high = interval(extrapolated({2: 5.0, 3: 8.0}, [(time, 1.0) for time in range(4, 9)]))
    assert 0 < low < expected < high < 1_000
