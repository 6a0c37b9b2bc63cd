"""What the email agent is paid: ART-E's ranges hold whatever happened."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.email_search.environment import SyntheticEmailSearch
from environment.email_search.reward import CORRECT_FROM, reward_parts, verdict

OUTCOMES = st.fixed_dictionaries(
    {
        "finish": st.sampled_from(("answered", "gave_up", "out_of_turns", "malformed", "open")),
        "answer": st.none() | st.text(max_size=5),
        "sources": st.lists(st.text(max_size=3), max_size=30),
        "turns": st.integers(0, 500),
        "max_turns": st.integers(1, 100),
        "detail": st.just(""),
        **dict.fromkeys(("found_source", "read_source", "read_invalid", "sources_correct"), st.booleans()),
    }
)
RANGES = {"malformed": (-2, -1), "wrong": (-1, 0), "no_answer": (0, 1), "right": (1, 2)}


@given(OUTCOMES, st.floats(0, 1))
def test_every_outcome_is_paid_within_its_range(outcome: dict[str, Any], score: float) -> None:
    kind = verdict(outcome, score)
    lowest, highest = RANGES[kind]
    parts = reward_parts(outcome, score)
    assert lowest <= sum(parts.values()) <= highest
    assert kind in parts
    assert all(isinstance(value, float) for value in parts.values())


@given(OUTCOMES, st.floats(0, 1))
def test_success_is_a_right_answer_with_the_right_sources(outcome: dict[str, Any], score: float) -> None:
    succeeded = SyntheticEmailSearch().success(outcome, score)
    assert succeeded == (verdict(outcome, score) == "right" and outcome["sources_correct"])


@given(OUTCOMES, st.floats(0, 1), st.sampled_from(("found_source", "read_source", "sources_correct")))
def test_progress_never_costs(outcome: dict[str, Any], score: float, step: str) -> None:
    without, with_it = (sum(reward_parts({**outcome, step: value}, score).values()) for value in (False, True))
    assert with_it >= without


def outcome(**changes: Any) -> dict[str, Any]:
    facts = dict.fromkeys(("found_source", "read_source", "sources_correct"), True)
    return {
        "finish": "answered",
        "sources": ["a"],
        "turns": 4,
        "max_turns": 8,
        "read_invalid": False,
        **facts,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "score", "parts"),
    [
        ({}, 1.0, {"right": 1.0, "sources_correct": 0.6, "few_sources": 0.1, "few_turns": 0.05}),
        ({}, CORRECT_FROM, {"right": 1.0, "sources_correct": 0.6, "few_sources": 0.1, "few_turns": 0.05}),
        ({"sources": [], "sources_correct": False, "turns": 20}, 1.0, {"right": 1.0, "few_turns": 0.0}),
        (
            {"sources": ["a", "b"], "sources_correct": False, "turns": 8},
            1.0,
            {"right": 1.0, "few_sources": 0.05, "few_turns": 0.0},
        ),
        (
            {},
            0.4,
            {"wrong": -1.0, "found_source": 0.1, "read_source": 0.1, "no_invalid_read": 0.1, "sources_correct": 0.1},
        ),
        (
            {"finish": "gave_up", "sources_correct": False, "read_invalid": True, "read_source": False},
            1.0,
            {"no_answer": 0.0, "found_source": 0.1},
        ),
        (
            {"finish": "malformed", "sources_correct": False, "found_source": False, "read_source": False},
            1.0,
            {"malformed": -2.0, "no_invalid_read": 0.1},
        ),
    ],
)
def test_the_parts(changes: dict[str, Any], score: float, parts: dict[str, float]) -> None:
    assert reward_parts(outcome(**changes), score) == pytest.approx(parts)
