"""What the email agent is paid: ART-E's ranges hold whatever happened, and its own reward is as published."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch, build
from learnloop_service.environment.email_search.reward import (
    CORRECT_FROM,
    REWARDS,
    Reward,
    art_e,
    default,
    sources_only,
    verdict,
)

OUTCOMES = st.fixed_dictionaries(
    {
        "finish": st.sampled_from(("answered", "gave_up", "out_of_turns", "malformed", "open")),
        "answer": st.none() | st.text(max_size=5),
        "sources": st.lists(st.text(max_size=3), max_size=30),
        "turns": st.integers(0, 500),
        "max_turns": st.integers(1, 100),
        "detail": st.just(""),
        **dict.fromkeys(
            ("found_source", "read_source", "read_invalid", "cites_source", "sources_correct", "unknown_tool"),
            st.booleans(),
        ),
    }
)
RANGES = {"malformed": (-2, -1), "wrong": (-1, 0), "no_answer": (0, 1), "right": (1, 2)}


@pytest.mark.parametrize("reward", [default, art_e])
@given(outcome=OUTCOMES, score=st.floats(0, 1))
def test_every_outcome_is_paid_within_its_range(reward: Reward, outcome: dict[str, Any], score: float) -> None:
    kind = verdict(outcome, score)
    lowest, highest = RANGES[kind]
    parts = reward(outcome, score)
    assert lowest <= sum(parts.values()) <= highest
    assert kind in parts
    assert all(isinstance(value, float) for value in parts.values())


@given(OUTCOMES, st.floats(0, 1))
def test_success_is_a_right_answer_with_the_right_sources(outcome: dict[str, Any], score: float) -> None:
    succeeded = SyntheticEmailSearch().success(outcome, score)
    assert succeeded == (verdict(outcome, score) == "right" and outcome["sources_correct"])


@pytest.mark.parametrize("reward", REWARDS.values(), ids=REWARDS)
@given(
    outcome=OUTCOMES,
    score=st.floats(0, 1),
    step=st.sampled_from(("found_source", "read_source", "cites_source", "sources_correct")),
)
def test_progress_never_costs(reward: Reward, outcome: dict[str, Any], score: float, step: str) -> None:
    without, with_it = (sum(reward({**outcome, step: value}, score).values()) for value in (False, True))
    assert with_it >= without


def outcome(**changes: Any) -> dict[str, Any]:
    facts = dict.fromkeys(("found_source", "read_source", "cites_source", "sources_correct"), True)
    return {
        "finish": "answered",
        "sources": ["a"],
        "turns": 4,
        "max_turns": 8,
        "read_invalid": False,
        "unknown_tool": False,
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
    assert default(outcome(**changes), score) == pytest.approx(parts)


NOTHING = dict.fromkeys(("found_source", "read_source", "cites_source", "sources_correct"), False)


@pytest.mark.parametrize(
    ("changes", "score", "reward"),
    [
        # The lines of `calculate_reward` in their order; turns and sources as ART-E counts them.
        ({"finish": "malformed", "unknown_tool": True}, 0.0, -1.9 + 0.4),
        ({"finish": "malformed", **NOTHING, "read_invalid": True}, 0.0, -1.8),
        ({"finish": "malformed"}, 0.0, -1.8 + 0.4),
        ({}, 0.0, -1 + 0.4),
        ({**NOTHING}, 0.0, -1 + 0.1),
        ({**NOTHING, "read_invalid": True}, 0.0, -1.0),
        ({"finish": "gave_up", **NOTHING, "found_source": True}, 0.0, 0.2),
        ({"finish": "out_of_turns", "cites_source": False}, 0.0, 0.3),
        ({}, 1.0, 1 + 0.3 + 0.1 + 0.1 * (1 - 4 / 8)),
        ({"sources": ["a", "b"], "sources_correct": False}, 1.0, 1 + 0.3 + 0.1 / 2 + 0.05),
        ({"sources": ["b"], "cites_source": False, "sources_correct": False}, 1.0, 1 + 0.1 + 0.05),
        ({"sources": [], "turns": 8, **NOTHING}, 1.0, 1.0),
    ],
)
def test_art_es_reward_is_the_published_one(changes: dict[str, Any], score: float, reward: float) -> None:
    assert sum(art_e(outcome(**changes), score).values()) == pytest.approx(reward)


@given(OUTCOMES, st.floats(0, 1), st.floats(0, 1))
def test_sources_alone_pay_the_same_whatever_the_judge_says(outcome: dict[str, Any], one: float, other: float) -> None:
    assert sources_only(outcome, one) == sources_only(outcome, other)
    if outcome["finish"] == "answered":
        assert ("right" in sources_only(outcome, one)) == outcome["cites_source"]


def test_the_config_chooses_the_reward(tmp_path: Path) -> None:
    for name, reward in REWARDS.items():
        environment = build({"reward": name}, tmp_path)
        assert environment.reward(outcome(), 0.0) == reward(outcome(), 0.0)
    assert build({}, tmp_path).reward(outcome(), 1.0) == default(outcome(), 1.0)
    for wrong in ("ART-E", None, ["art_e"]):
        with pytest.raises(ValueError, match="reward must be one of default, art_e, sources_only"):
            build({"reward": wrong}, tmp_path)
