"""The sequential test behind guardrails is a fold over counts, valid at every look."""

from collections import Counter
from math import exp, log
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.statistics.betting import BETS
from learnloop_service.training.statistics.guardrails import ArmMean, Cell, above, arm_mean, below, evidence_of_bias

cells = st.builds(Cell, st.sampled_from((0.01, 0.05, 0.2, 0.5)), st.booleans(), st.floats(0, 1))


def _one_by_one(units: list[Cell], effect: float, forecast: float, sign: int) -> float:
    """The same evidence, with a stake for each bet that is updated unit by unit, as the literature writes it."""
    stakes = np.ones(len(BETS))
    for unit in units:
        corners = [
            (y - forecast) * (a - unit.probability) - effect * (a - unit.probability) ** 2
            for y in (0, 1)
            for a in (0, 1)
        ]
        coin = unit.candidate - unit.probability
        z = (unit.value - forecast) * coin - effect * coin**2
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


@given(st.dictionaries(cells, st.integers(1, 50), max_size=8), st.sampled_from((0.05, 0.2, 0.5)), st.floats(0, 0.5))
def test_the_wealth_expected_at_the_tolerance_is_what_it_was(
    before: dict[Cell, int], probability: float, stable: float
) -> None:
    """The martingale, by its definition: the effect is exactly what is bet against."""
    effect, forecast = 0.1, 0.05
    for measure in (above, below):
        after = 0.0
        for candidate, chance in ((True, probability), (False, 1 - probability)):
            rate = stable + effect * candidate
            for value, share in ((1.0, rate), (0.0, 1 - rate)):
                counts = Counter(before) + Counter({Cell(probability, candidate, value): 1})
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
