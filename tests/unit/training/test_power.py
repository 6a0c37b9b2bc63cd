"""What the gate can show with a number of tasks."""

from itertools import product
from math import prod
from time import process_time

import pytest

from learnloop_service.training.statistics.error_shares import error_shares
from learnloop_service.training.statistics.gate import GateDecision, GateRule, verdict
from learnloop_service.training.statistics.power import FIRST_PROMPT, Power, acceptance, power


@pytest.mark.parametrize(("tasks", "points"), [(24, 51), (64, 25), (141, 15), (200, 12)])
def test_the_gain_that_is_shown_with_80_percent(tasks: int, points: int) -> None:
    """The simulation of the design has about 50, 25, 15 and 12."""
    assert power(tasks).gain == points / 100


def test_what_can_be_shown_is_a_sentence() -> None:
    assert power(64).sentences == [
        "With 64 validation tasks a gain of 25 points is shown with 80% probability, one of 10 points with 16%."
    ]
    assert Power(8, None, 0.004).sentences == [
        "With 8 validation tasks no gain is shown with 80% probability, one of 10 points with 0%.",
        "That is too few to show a gain below 60 points. Add tasks.",
    ]


def accepts(differences: tuple[float, ...], rule: GateRule) -> bool:
    most = len(differences)
    for done in [*range(rule.look_every, most, rule.look_every), most]:
        decision = verdict(differences[:done], rule, done, most).decision
        if decision is not GateDecision.CONTINUE:
            return decision is GateDecision.BETTER
    raise AssertionError("undecided")


@pytest.mark.parametrize("rule", [GateRule(error=0.3, look_every=3), GateRule(error=0.3, exact=0.0, look_every=2)])
@pytest.mark.parametrize("gain", [0.0, 0.2, 0.5, 0.9])
def test_the_probability_is_that_of_the_gate(rule: GateRule, gain: float) -> None:
    """All 19,683 comparisons of nine tasks, with their probabilities."""
    lost = min(0.1, (1 - gain) / 2)
    weights = {1.0: gain + lost, 0.0: 1 - gain - 2 * lost, -1.0: lost}
    expected = sum(
        prod(map(weights.__getitem__, differences))
        for differences in product(weights, repeat=9)
        if accepts(differences, rule)
    )
    assert acceptance(9, 0.2, rule)(gain) == pytest.approx(expected, abs=1e-4)


def test_an_agent_that_differs_from_itself_hides_gains() -> None:
    gains = [power(64, differing).gain or 1.0 for differing in (0.0, 0.12, 0.3, 1.0)]
    assert gains == sorted(set(gains))


def test_a_smaller_share_of_the_error_shows_less() -> None:
    twentieth = power(200, rule=GateRule(error=error_shares([False] * 20, 0)[-1]))
    assert twentieth.small < power(200).small
    assert FIRST_PROMPT.error == pytest.approx(error_shares([False], 0)[0])


def test_few_tasks_are_warned_of() -> None:
    assert power(16).sentences[1:] == ["That is too few to show a gain below 60 points. Add tasks."]
    assert len(power(24).sentences) == 1


def test_it_is_quick() -> None:
    power(64)
    began = process_time()
    power(200)
    assert process_time() - began < 0.05
