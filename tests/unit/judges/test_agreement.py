"""Measures of agreement, against known values and other definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.judges.agreement import kappa, rank_correlation, same_decisions

SCORES = st.sampled_from((0.0, 0.2, 0.5, 0.8, 1.0))
PAIRS = st.lists(st.tuples(SCORES, SCORES), max_size=30)


def test_kappa_of_a_textbook_table() -> None:
    """20 times both yes, 15 both no, 5 and 10 apart: observed 0.7, expected 0.5."""
    pairs = [(1.0, 1.0)] * 20 + [(1.0, 0.0)] * 5 + [(0.0, 1.0)] * 10 + [(0.0, 0.0)] * 15
    assert same_decisions(pairs) == pytest.approx(0.7)
    assert kappa(pairs) == pytest.approx(0.4)


def test_rank_correlation_of_known_ranks() -> None:
    assert rank_correlation([(0.1, 0.2), (0.2, 0.1), (0.3, 0.4), (0.4, 0.3), (0.5, 0.5)]) == pytest.approx(0.8)
    tied = [(0.1, 0.1), (0.1, 0.2), (0.9, 0.3)]  # ranks 1.5, 1.5, 3 and 1, 2, 3
    assert rank_correlation(tied) == pytest.approx(3**0.5 / 2)


def test_where_nothing_can_be_said_there_is_no_figure() -> None:
    assert same_decisions([]) is None
    assert kappa([]) is None
    assert rank_correlation([]) is None
    always_yes = [(1.0, 0.9), (0.6, 1.0)]
    assert same_decisions(always_yes) == 1.0
    assert kappa(always_yes) is None
    assert rank_correlation([(0.5, 0.1), (0.5, 0.9)]) is None


@given(PAIRS)
def test_it_does_not_matter_who_is_first(pairs: list[tuple[float, float]]) -> None:
    turned = [(other, one) for one, other in pairs]
    for measure in (same_decisions, kappa, rank_correlation):
        figure = measure(pairs)
        assert figure == pytest.approx(measure(turned)) if figure is not None else measure(turned) is None
        assert figure is None or -1 - 1e-9 <= figure <= 1 + 1e-9


@given(PAIRS)
def test_a_judge_agrees_with_itself(pairs: list[tuple[float, float]]) -> None:
    mirrored = [(one, one) for one, _ in pairs]
    assert same_decisions(mirrored) in (1.0, None)
    for figure in (kappa(mirrored), rank_correlation(mirrored)):
        assert figure is None or figure == pytest.approx(1)
