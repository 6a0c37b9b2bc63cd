"""The gate: what it accepts, and how seldom it accepts what is not better."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.statistics.gate import GateDecision, GateRule, sign_test, verdict

BETTER, NOT_BETTER, CONTINUE = GateDecision.BETTER, GateDecision.NOT_BETTER, GateDecision.CONTINUE
RULE = GateRule()


def decided(differences: list[float], rule: GateRule = RULE) -> tuple[GateDecision, int]:
    """The decision of a whole comparison, and the number of tasks that it took."""
    most = len(differences)
    for start in range(0, most, rule.look_every):
        done = min(start + rule.look_every, most)
        decision = verdict(differences[:done], rule, done, most).decision
        if decision is not CONTINUE:
            return decision, done
    raise AssertionError("the comparison ends undecided")


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=8, max_size=80))
def test_every_comparison_is_decided_and_counts_its_tasks(differences: list[float]) -> None:
    decision, done = decided(differences)
    found = verdict(differences[:done], RULE, done, len(differences))
    assert decision is found.decision
    assert found.tasks == done
    assert found.won == differences[:done].count(1.0)
    assert found.lost == differences[:done].count(-1.0)


@pytest.mark.parametrize(
    ("won", "lost", "says"), [(5, 0, BETTER), (4, 0, NOT_BETTER), (23, 4, BETTER), (12, 10, NOT_BETTER)]
)
def test_the_sign_test_decides_after_the_last_task(won: int, lost: int, says: GateDecision) -> None:
    differences = [1.0] * won + [-1.0] * lost
    assert verdict(differences, RULE, 60, 60).decision is says


def test_the_sign_test_is_the_binomial_tail() -> None:
    assert sign_test(6, 0) == pytest.approx(1 / 64)
    assert sign_test(3, 2) == pytest.approx(0.5)
    assert sign_test(0, 0) == 1.0


def test_clear_gains_are_accepted_early_and_no_gain_is_given_up() -> None:
    assert decided([1.0] * 64) == (BETTER, 16)
    assert decided([0.0] * 64) == (NOT_BETTER, 16)
    assert decided([0.0] * 200) == (NOT_BETTER, 56)


def test_means_of_several_rollouts_are_decided_by_bets_alone() -> None:
    bets = GateRule(exact=0.0)
    assert decided([0.1] * 24)[0] is BETTER, "as signs they would pass"
    assert decided([0.1] * 24, bets) == (NOT_BETTER, 24)
    assert decided([0.5] * 64, bets)[0] is BETTER


@pytest.mark.parametrize("tasks", [24, 64])
def test_equal_candidates_are_seldom_accepted(tasks: int) -> None:
    """Of 2,000 comparisons with as many wins as losses on average, at most 5% by the bound. The seed is fixed."""
    drawn, weights = Random(5), (0.12, 0.76, 0.12)
    decisions = [decided(drawn.choices((-1.0, 0.0, 1.0), weights, k=tasks))[0] for _ in range(2_000)]
    assert decisions.count(BETTER) <= 100
