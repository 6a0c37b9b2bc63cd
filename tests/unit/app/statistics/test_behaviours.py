"""Behaviour that changed between two evaluations, found in the tool calls of their rollouts."""

import json
import random
from typing import Any

from learnloop_service.app.statistics.behaviours import MAX_SHOWN, Act, behaviours

SCENARIOS = [f"scenario-{number}" for number in range(12)]


def _act(scenario: str, *calls: tuple[str, Any], end: str = "answered") -> Act:
    return Act(scenario, [(tool, json.dumps(arguments)) for tool, arguments in calls], end)


def _shares(before: list[Act], after: list[Act]) -> dict[str, tuple[float, float]]:
    return {behaviour.what: (behaviour.before, behaviour.after) for behaviour in behaviours(before, after).shown}


def test_a_search_that_begins_to_name_two_words_is_found_with_its_interval() -> None:
    def search(scenario: str, *words: str) -> Act:
        return _act(scenario, ("search_inbox", {"keywords": list(words), "sender": None}), ("read_email", {"id": "m1"}))

    before = [
        search(scenario, "project", "subject") if n < 3 else search(scenario, "project")
        for n, scenario in enumerate(SCENARIOS)
    ]
    after = [search(scenario, "project", "subject") for scenario in SCENARIOS]
    compared = behaviours(before, after)
    [one] = compared.shown
    assert one.what == "the first call is `search_inbox` with at least 2 values in `keywords`"
    assert one.before == 0.25
    assert one.after == 1.0
    assert one.change.scenarios == 12
    assert one.change.changed == 9
    assert one.change.mean == 0.75
    assert 0 < one.change.low < 0.75 < one.change.high <= 1
    assert compared.compared > 1


def test_words_of_a_text_are_counted_and_a_new_argument_is_named() -> None:
    before = [_act(scenario, ("find", {"query": "kickoff"})) for scenario in SCENARIOS]
    after = [_act(scenario, ("find", {"query": "the kickoff date", "since": "2026-01-01"})) for scenario in SCENARIOS]
    assert _shares(before, after) == {"the first call is `find` with at least 2 words in `query`": (0.0, 1.0)}
    later = [*after[:6], *(_act(scenario, ("find", {"query": "the kickoff date"})) for scenario in SCENARIOS[6:])]
    assert _shares(before, later)["the first call is `find` with `since`"] == (0.0, 0.5)


def test_the_first_tool_the_number_of_calls_and_the_end_are_compared() -> None:
    before = [
        _act(scenario, ("read", {}), end="gave_up" if n % 2 else "malformed") for n, scenario in enumerate(SCENARIOS)
    ]
    calls: list[tuple[str, Any]] = [("search", {}), ("read", {}), ("answer", {})]
    after = [
        _act(scenario, *calls[: 3 if n < 8 else 1], end="answered" if n < 6 else "gave_up")
        for n, scenario in enumerate(SCENARIOS)
    ]
    shares = _shares(before, after)
    assert shares["at least 2 tool calls"] == (0.0, 8 / 12)
    assert shares["ends as `malformed`"] == (0.5, 0.0)
    assert "the first call is `read`" in shares or "the first call is `search`" in shares
    assert len({"the first call is `read`", "the first call is `search`"} & shares.keys()) == 1, "they are opposites"


def test_opposites_and_thresholds_of_one_number_are_said_once() -> None:
    before = [_act(scenario, end="malformed") for scenario in SCENARIOS]
    after = [_act(scenario, *[("search", {})] * 4) for scenario in SCENARIOS]
    assert len(behaviours(before, after).shown) == 1


def test_scenarios_that_only_one_evaluation_has_and_chance_are_left_out() -> None:
    draw = random.Random(0)
    acts = [_act(scenario, ("search", {}), end=draw.choice(("answered", "gave_up"))) for scenario in SCENARIOS]
    others = [_act(f"other-{scenario}", ("read", {}), end="malformed") for scenario in SCENARIOS]
    assert behaviours([*acts, *others], acts).shown == []
    assert behaviours(others, acts).shown == []
    assert behaviours([], []).shown == []
    assert behaviours(acts, [*acts[:9], *(_act(scenario, ("read", {})) for scenario in SCENARIOS[9:])]).shown == []


def test_what_a_broken_agent_invents_is_bounded_and_cut() -> None:
    draw = random.Random(1)

    def noise(scenario: str) -> Act:
        calls = [("\n".join(draw.choices("abcdef", k=90)), "[" if draw.random() < 0.5 else "{}") for _ in range(60)]
        return Act(scenario, calls, "malformed")

    compared = behaviours(
        [noise(scenario) for scenario in SCENARIOS * 8], [_act(scenario, ("s" * 999, [])) for scenario in SCENARIOS]
    )
    assert 0 < len(compared.shown) <= MAX_SHOWN
    assert all(len(behaviour.what) < 150 and "\n" not in behaviour.what for behaviour in compared.shown)
    assert compared.compared <= 400
