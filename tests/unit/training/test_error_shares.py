"""How the error of an improvement is divided among its tests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.gate import by_gate, strictly_higher, wrong_ladders
from learnloop_service.training.statistics.error_shares import error_shares

PROMPT, PLANNED = False, True


def test_prompts_get_ever_smaller_parts_of_half_of_it() -> None:
    assert error_shares([PROMPT] * 3, 0) == pytest.approx([0.0125, 0.025 / 6, 0.025 / 12])


def test_planned_tests_get_equal_parts_of_the_other_half() -> None:
    assert error_shares([PLANNED] * 4, 4) == pytest.approx([0.025 / 4] * 4)


def test_prompts_cost_planned_tests_nothing() -> None:
    shares = error_shares([*[PROMPT] * 100, PLANNED, PROMPT], 1)
    assert shares[-2:] == pytest.approx([0.025, 0.025 / 101 / 102])


def test_what_continuing_adds_shares_with_the_prompts() -> None:
    shares = error_shares([PROMPT, PLANNED, PLANNED, PROMPT], 1)
    assert shares == pytest.approx([0.0125, 0.025, 0.025 / 6, 0.025 / 12])


@given(st.lists(st.booleans(), max_size=200), st.integers(0, 10), st.floats(0.001, 0.5))
def test_all_shares_together_are_at_most_the_error(tests: list[bool], planned: int, error: float) -> None:
    assert sum(error_shares(tests, planned, error)) <= error * (1 + 1e-9)
    assert error_shares(tests, planned, error)[:5] == error_shares(tests[:5], planned, error)


def test_a_ladder_of_equal_prompts_seldom_accepts_one() -> None:
    """Of 100 ladders of 50 prompts with the seeds of the benchmark's first, whose bound of 5% is for 1,000."""
    assert wrong_ladders(64, 100, by_gate) <= 0.05
    assert wrong_ladders(64, 100, strictly_higher) >= 0.9
