"""The sequential test of two arms is a fold over counts, valid at every look. Its interval is what no bet rejects."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import exp, log
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.statistics.betting import BETS
from learnloop_service.training.statistics.two_arms import (
    ArmMean,
    Cell,
    above,
    arm_mean,
    below,
    effect_interval,
    evidence_of_bias,
    users_needed,
)

cells = st.builds(
    Cell, st.sampled_from((0.01, 0.05, 0.2, 0.5)), st.booleans(), st.floats(0, 1), st.none() | st.floats(0.01, 0.99)
)
enrolled = st.builds(Cell, st.just(0.5), st.booleans(), st.sampled_from((0.0, 0.5, 1.0)), st.floats(0, 1))
"""Units of an outcome test: either arm by a fair coin."""


def _one_by_one(units: list[Cell], effect: float, forecast: float, sign: int) -> float:
    """The same evidence, with a stake for each bet that is updated unit by unit, as the literature writes it."""
    stakes = np.ones(len(BETS))
    for unit in units:
        expected = forecast if unit.forecast is None else unit.forecast
        corners = [
            (y - expected) * (a - unit.probability) - effect * (a - unit.probability) ** 2
            for y in (0, 1)
            for a in (0, 1)
        ]
        coin = unit.candidate - unit.probability
        z = (unit.value - expected) * coin - effect * coin**2
        most = max(-sign * corner for corner in corners)
        stakes *= 1 + np.array(BETS) * sign * z / most
    return float(np.log(stakes.mean()))


@given(st.lists(cells, max_size=60), st.sampled_from((0.0, 0.02, 0.1)), st.floats(0.01, 0.5), st.randoms())
def test_the_evidence_is_a_fold_over_counts_in_any_order(
    units: list[Cell], effect: float, forecast: float, chance: Random
) -> None:
    shuffled = chance.sample(units, len(units))
    for measure, sign in ((above, 1), (below, -1)):
        evidence = measure(Counter(units), effect, forecast)
        assert measure(Counter(shuffled), effect, forecast) == evidence  # to the last bit
        assert evidence == pytest.approx(_one_by_one(units, effect, forecast, sign), abs=1e-9)


@given(
    st.dictionaries(cells, st.integers(1, 50), max_size=8),
    st.sampled_from((0.05, 0.2, 0.5)),
    st.floats(0, 0.5),
    st.none() | st.floats(0, 1),
)
def test_the_wealth_expected_at_the_tolerance_is_what_it_was(
    before: dict[Cell, int], probability: float, stable: float, own_forecast: float | None
) -> None:
    """The martingale, by its definition: the effect is exactly what is bet against, whatever was forecast."""
    effect, forecast = 0.1, 0.05
    for measure in (above, below):
        after = 0.0
        for candidate, chance in ((True, probability), (False, 1 - probability)):
            rate = stable + effect * candidate
            for value, share in ((1.0, rate), (0.0, 1 - rate)):
                counts = Counter(before) + Counter({Cell(probability, candidate, value, own_forecast): 1})
                after += chance * share * exp(measure(counts, effect, forecast))
        assert after == pytest.approx(exp(measure(before, effect, forecast)))


@given(st.dictionaries(cells, st.integers(1, 50), max_size=8), st.sampled_from((0.05, 0.2, 0.5)), st.floats(0, 1))
def test_the_wealth_expected_of_a_fair_coin_is_what_it_was(
    before: dict[Cell, int], probability: float, value: float
) -> None:
    after = 0.0
    for candidate, chance in ((True, probability), (False, 1 - probability)):
        after += chance * exp(evidence_of_bias(Counter(before) + Counter({Cell(probability, candidate, value): 1})))
    assert after == pytest.approx(exp(evidence_of_bias(before)))


def test_a_coin_that_is_not_fair_is_found_on_either_side() -> None:
    for candidate, is_fair in ((0, False), (10, False), (50, True), (120, False)):
        counts = {Cell(0.05, True, 0.0): candidate, Cell(0.05, False, 0.0): 1_000 - candidate}
        assert (evidence_of_bias(counts) < log(20)) is is_fair, candidate
        assert (evidence_of_bias(counts) > log(1_000)) is not is_fair, candidate
    assert evidence_of_bias({}) == 0.0


def test_a_worse_candidate_is_found_and_an_equal_one_is_cleared() -> None:
    worse = {Cell(0.5, True, 1.0): 40, Cell(0.5, True, 0.0): 160, Cell(0.5, False, 0.0): 196, Cell(0.5, False, 1.0): 4}
    equal = {Cell(0.5, True, 1.0): 4, Cell(0.5, True, 0.0): 196, Cell(0.5, False, 0.0): 196, Cell(0.5, False, 1.0): 4}
    assert above(worse, 0.02, 0.02) > log(1_000) > log(20) > above(equal, 0.02, 0.02)
    assert below(equal, 0.1, 0.02) > log(20) > below(worse, 0.1, 0.02)
    assert above({}, 0.02, 0.02) == below({}, 0.02, 0.02) == 0.0


def test_means_of_arms() -> None:
    counts = {Cell(0.5, True, 1.0): 1, Cell(0.2, True, 0.0): 3, Cell(0.5, False, 0.5): 2}
    assert arm_mean(counts, candidate=True) == ArmMean(4, 0.25)
    assert arm_mean(counts, candidate=False) == ArmMean(2, 0.5)
    assert arm_mean({}, candidate=True) == ArmMean(0, None)


@pytest.mark.parametrize("effect", [-0.2, 0.0, 0.1])
@pytest.mark.parametrize("measure", [above, below])
def test_true_effects_are_rejected_at_any_look_as_rarely_as_said(measure: Callable[..., float], effect: float) -> None:
    """Over all courses of 16 units, with a look after each, while the stable arm gets better."""
    needed, rejected = log(3), 0.0
    open_courses: dict[tuple[int, ...], float] = {(0, 0, 0, 0): 1.0}
    kinds = [Cell(0.5, candidate, value, 0.4) for candidate in (True, False) for value in (1.0, 0.0)]
    for look in range(16):
        stable = 0.2 + 0.04 * look
        rates = [rate for mean in (stable + effect, stable) for rate in (mean, 1 - mean)]
        following: dict[tuple[int, ...], float] = {}
        for numbers, probability in open_courses.items():
            for index, rate in enumerate(rates):
                more = tuple(number + (other == index) for other, number in enumerate(numbers))
                following[more] = following.get(more, 0.0) + probability * rate / 2
        at_needed = {
            numbers: measure(dict(zip(kinds, numbers, strict=True)), effect, 0.5) >= needed for numbers in following
        }
        rejected += sum(following[numbers] for numbers, reaches in at_needed.items() if reaches)
        open_courses = {numbers: following[numbers] for numbers, reaches in at_needed.items() if not reaches}
    assert sum(open_courses.values()) + rejected == pytest.approx(1.0)
    assert 0.02 < rejected <= exp(-needed)


@given(st.dictionaries(enrolled, st.integers(1, 200), max_size=12), st.floats(-0.999, 0.999), st.randoms())
def test_the_interval_contains_every_effect_that_neither_bet_rejects(
    counts: dict[Cell, int], effect: float, chance: Random
) -> None:
    low, high = effect_interval(counts, 0.5, 0.05)
    rejected = above(counts, effect, 0.5) >= log(40) or below(counts, effect, 0.5) >= log(40)
    assert rejected or low <= effect <= high
    shuffled = dict(chance.sample(list(counts.items()), len(counts)))
    assert effect_interval(shuffled, 0.5, 0.05) == (low, high)  # to the last bit


@given(st.dictionaries(enrolled, st.integers(1, 200), min_size=1, max_size=12))
def test_evidence_of_an_effect_above_a_level_falls_as_the_level_rises(counts: dict[Cell, int]) -> None:
    """So what is not rejected is an interval, and bisection finds its ends."""
    levels = [level / 10 for level in range(-9, 10)]
    for lower, higher in pairwise(levels):
        assert above(counts, lower, 0.5) >= above(counts, higher, 0.5) - 1e-9
        assert below(counts, lower, 0.5) <= below(counts, higher, 0.5) + 1e-9


def test_the_interval_is_around_the_effect_and_narrows_with_units() -> None:
    widths = []
    for units in (100, 1_000, 10_000):
        counts = {
            Cell(0.5, candidate, value, 0.5): round(units * rate)
            for candidate, mean in ((True, 0.6), (False, 0.4))
            for value, rate in ((1.0, mean), (0.0, 1 - mean))
        }
        low, high = effect_interval(counts, 0.5, 0.05)
        assert low < 0.2 < high
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]
    assert effect_interval({}, 0.5, 0.05) == (-1.0, 1.0)


def test_an_effect_half_as_large_needs_four_times_the_users() -> None:
    assert users_needed(0.25, 0.1) == pytest.approx(1_138, abs=1)
    assert users_needed(0.25, 0.05) == pytest.approx(4 * users_needed(0.25, 0.1))
