"""Stored requests of evaluations open as the kind that they are."""

from typing import Any

import pytest

from learnloop_service.app.domain.stored_evaluation import (
    Comparison,
    Evaluation,
    RejudgingEvaluation,
    TrialEvaluation,
    WhatIfEvaluation,
    parse_evaluation,
)
from tests.stored_evaluations import COMPARISON, REJUDGE, TRIAL, WHAT_IF, stored_now


@pytest.mark.parametrize(
    ("kind", "fields_of_kind", "slots", "units", "listed_by"),
    [
        (Comparison, {}, 120, 30, {}),
        (TrialEvaluation, {"trial": TRIAL}, 120, 30, {}),
        (WhatIfEvaluation, {"what_if": WHAT_IF, "scenarios": 4, "samples": 3}, 18, 12, {"trajectory_id": "01J"}),
        (RejudgingEvaluation, {"rejudge": REJUDGE, "models": [], "scenarios": 10}, 160, 10, {"run_id": "01R"}),
    ],
)
def test_a_stored_request_is_of_the_kind_whose_field_it_has(
    kind: type[Evaluation], fields_of_kind: dict[str, Any], slots: int, units: int, listed_by: dict[str, str]
) -> None:
    stored = COMPARISON | fields_of_kind
    evaluation = parse_evaluation(stored)
    assert type(evaluation) is kind
    assert evaluation.slots == slots
    assert len(evaluation.units) == units
    assert evaluation.listed_by == listed_by
    assert evaluation.stored() == stored_now(stored)


def test_a_request_from_before_the_other_kinds_is_a_comparison() -> None:
    stored = {name: value for name, value in COMPARISON.items() if name not in ("trial", "what_if", "rejudge")}
    evaluation = parse_evaluation(stored)
    assert type(evaluation) is Comparison
    assert evaluation.stored() == stored_now(COMPARISON)


def test_each_rollout_is_in_one_unit_of_its_own_scenario_or_turn() -> None:
    comparison = parse_evaluation(COMPARISON | {"scenarios": 2})
    what_if = parse_evaluation(COMPARISON | {"what_if": WHAT_IF, "scenarios": 2})
    assert comparison.units == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    assert what_if.units == [[(0, 0)], [(0, 1)], [(1, 0)], [(1, 1)]]
