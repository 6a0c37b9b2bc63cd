"""How often challengers of known quality are promoted.

`python -m benchmarks.learning.gate` has more of them.
"""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.gate import Quality, promoted
from learnloop_service.training.statistics.sequential import Decision, PairEvidence, Rule, evidence

RULE = Rule()


def test_equal_challengers_are_rarely_promoted_and_better_ones_mostly() -> None:
    """There are 60 of either kind, with the seeds of the benchmark's first; its bounds are for 1,000."""
    assert promoted(Quality(0.5, 0.0), RULE, count=60) <= 0.05
    assert promoted(Quality(0.5, 0.1, shared=0.5), RULE, count=60) >= 0.90


def test_a_decision_needs_evidence() -> None:
    assert evidence([], RULE).decision(RULE) is Decision.CONTINUE
    assert evidence([1.0] * 100, RULE).decision(RULE) is Decision.PROMOTE
    assert evidence([-1.0] * 100, RULE).decision(RULE) is Decision.REFUSE
    assert evidence([0.0] * 400, RULE).decision(RULE) is Decision.REFUSE
    assert evidence([0.0] * 20, RULE).decision(RULE) is Decision.CONTINUE
    assert PairEvidence(9, log(20), 0.0).decision(RULE) is Decision.PROMOTE
    assert PairEvidence(9, log(20) - 1e-9, 0.0).decision(RULE) is Decision.CONTINUE


@given(st.lists(st.floats(-1, 1), max_size=50))
def test_no_sequence_makes_it_fail_and_one_more_win_never_hurts(differences: list[float]) -> None:
    before = evidence(differences, RULE)
    more = evidence([*differences, 1.0], RULE)
    assert more.better > before.better
    assert more.not_by_margin < before.not_by_margin
    assert before.pairs == len(differences)


@given(st.lists(st.sampled_from((-1.0, 0.0, 1.0)), max_size=4))
def test_the_wealth_expected_of_a_fair_pair_is_what_it_was(differences: list[float]) -> None:
    """The supermartingale, by its definition."""
    before = exp(evidence(differences, RULE).better)
    after = [exp(evidence([*differences, d], RULE).better) for d in (-1.0, 1.0)]
    assert sum(after) / 2 == pytest.approx(before)
