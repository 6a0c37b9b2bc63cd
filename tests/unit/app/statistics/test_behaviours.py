"""Behaviour that changed between two evaluations, found in the tool calls of their rollouts."""

import json
import random
from typing import Any

from learnloop_service.app.statistics.behaviours import MAX_SHOWN, Act, behaviours

SCENARIOS = [f"scenario-{number}" for number in range(12)]


def _act(scenario: str, *calls: tuple[str, Any], end: str = "answered") -> Act:
    return Act(scenario, [(tool, json.dumps(given)) for tool, given in calls], end)


def _found(before: list[Act], after: list[Act]) -> dict[str, tuple[float, float]]:
    return {each.what: (each.before, each.after) for each in behaviours(before, after).shown}


def test_a_search_that_begins_to_name_two_words_is_found_with_its_interval() -> None:
    def search(scenario: str, *words: str) -> Act:
        return _act(scenario, ("search_inbox", {"keywords": list(words), "sender": None}), ("read_email", {"id": "m1"}))

    before = [
        search(each, "project", "subject") if n < 3 else search(each, "project") for n, each in enumerate(SCENARIOS)
    ]
    after = [search(each, "project", "subject") for each in SCENARIOS]
    found = behaviours(before, after)
    [one] = found.shown
    assert one.what == "the first call is `search_inbox` with at least 2 values in `keywords`"
    assert (one.before, one.after) == (0.25, 1.0)
    assert (one.change.scenarios, one.change.changed, one.change.mean) == (12, 9, 0.75)
    assert 0 < one.change.low < 0.75 < one.change.high <= 1
    assert found.compared > 1


def test_words_of_a_text_are_counted_and_a_new_argument_is_named() -> None:
    before = [_act(each, ("find", {"query": "kickoff"})) for each in SCENARIOS]
    after = [_act(each, ("find", {"query": "the kickoff date", "since": "2026-01-01"})) for each in SCENARIOS]
    assert _found(before, after) == {"the first call is `find` with at least 2 words in `query`": (0.0, 1.0)}
    later = [*after[:6], *(_act(each, ("find", {"query": "the kickoff date"})) for each in SCENARIOS[6:])]
    assert _found(before, later)["the first call is `find` with `since`"] == (0.0, 0.5)


def test_the_first_tool_the_number_of_calls_and_the_end_are_compared() -> None:
    before = [_act(each, ("read", {}), end="gave_up" if n % 2 else "malformed") for n, each in enumerate(SCENARIOS)]
    calls: list[tuple[str, Any]] = [("search", {}), ("read", {}), ("answer", {})]
    after = [
        _act(each, *calls[: 3 if n < 8 else 1], end="answered" if n < 6 else "gave_up")
        for n, each in enumerate(SCENARIOS)
    ]
    found = _found(before, after)
    assert found["at least 2 tool calls"] == (0.0, 8 / 12)
    assert found["ends as `malformed`"] == (0.5, 0.0)
    assert "the first call is `read`" in found or "the first call is `search`" in found
    assert len({"the first call is `read`", "the first call is `search`"} & found.keys()) == 1, "they are opposites"


def test_opposites_and_thresholds_of_one_number_are_said_once() -> None:
    before = [_act(each, end="malformed") for each in SCENARIOS]
    after = [_act(each, *[("search", {})] * 4) for each in SCENARIOS]
    assert len(behaviours(before, after).shown) == 1


def test_scenarios_that_only_one_evaluation_has_and_chance_are_left_out() -> None:
    draw = random.Random(0)
    acts = [_act(each, ("search", {}), end=draw.choice(("answered", "gave_up"))) for each in SCENARIOS]
    others = [_act(f"other-{each}", ("read", {}), end="malformed") for each in SCENARIOS]
    assert behaviours([*acts, *others], acts).shown == []
    assert behaviours(others, acts).shown == []
    assert behaviours([], []).shown == []
    assert behaviours(acts, [*acts[:9], *(_act(each, ("read", {})) for each in SCENARIOS[9:])]).shown == []


def test_what_a_broken_agent_invents_is_bounded_and_cut() -> None:
    draw = random.Random(1)

    def noise(scenario: str) -> Act:
        calls = [("\n".join(draw.choices("abcdef", k=90)), "[" if draw.random() < 0.5 else "{}") for _ in range(60)]
        return Act(scenario, calls, "malformed")

    found = behaviours([noise(each) for each in SCENARIOS * 8], [_act(each, ("s" * 999, [])) for each in SCENARIOS])
    assert 0 < len(found.shown) <= MAX_SHOWN
    assert all(len(each.what) < 150 and "\n" not in each.what for each in found.shown)
    assert found.compared <= 400
