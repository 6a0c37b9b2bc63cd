"""Tasks for an agent that lives elsewhere: what is a scenario, what is an outcome, and what they are worth."""

import json
from pathlib import Path
from typing import Any

import pytest

from learnloop.outcome import BadOutcome, outcome_of, parse_outcome, read_report
from learnloop_service.environment.own_agent.runner import Pull, Push, PythonFunction, parse_runner
from learnloop_service.environment.registry import build

TASKS: list[Any] = [{"task": {"question": f"What is {n}?"}, "reference": {"answer": str(n)}} for n in range(10)]
PULL: dict[str, Any] = {"runner": {"pull": {}}}


def environment_of(**config: Any) -> Any:
    return build("agent", {"scenarios": TASKS, **PULL, **config}, Path())


def test_a_fifth_of_the_tasks_is_held_out_for_each_split() -> None:
    environment = environment_of()
    drawn = {split: environment.scenarios(split, 40, 0) for split in ("train", "validation", "test")}
    ids = {split: {scenario.id for scenario in scenarios} for split, scenarios in drawn.items()}
    assert {split: len(scenario_ids) for split, scenario_ids in ids.items()} == {"train": 6, "validation": 2, "test": 2}
    assert not ids["train"] & ids["validation"] | ids["train"] & ids["test"] | ids["validation"] & ids["test"]
    assert drawn["train"] == environment.scenarios("train", 40, 0)
    assert drawn["train"][10:20] == environment.scenarios("train", 10, 0, 10)


@pytest.mark.parametrize(
    ("scenarios", "message"),
    [
        (TASKS[:2], "a list of 3 to"),
        ([*TASKS[:3], "more"], "scenario number 3 is not an object"),
        ([*TASKS[:3], {"task": {}}], "scenario number 3 needs a task"),
        ([*TASKS[:3], {"task": {"a": 1}, "answer": 2}], "scenario number 3 has no answer; it takes: task, id"),
        ([*TASKS[:3], {"task": {"a": 1}, "id": "given.0"}], "scenario number 3 has the id 'given.0' of number 0"),
        ([{**task, "split": "train"} for task in TASKS], "all three occur"),
        ([*TASKS[:3], {"task": {"a": 1}, "split": "exam"}], "scenario number 3 has the split 'exam'"),
    ],
)
def test_what_is_no_set_of_tasks_is_refused(scenarios: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        environment_of(scenarios=scenarios)


def test_a_task_is_in_one_split_only() -> None:
    with pytest.raises(ValueError, match="has the task of number"):
        environment_of(scenarios=[{"task": {"same": True}, "id": str(n)} for n in range(5)])


def test_a_reported_reward_is_the_reward_and_else_the_score_is() -> None:
    environment = environment_of(success_from=0.8)

    def finished(report: str) -> Any:
        episode: Any = environment.episode(environment.scenarios("train", 1, 0)[0])
        episode.report(report)
        return episode.outcome()

    parts = finished('{"parts": {"right": 1, "slow": -0.25}}')
    assert parts["reported_reward"] == 0.75
    assert environment.reward(parts, 0.75) == {"right": 1.0, "slow": -0.25}
    assert environment.reward(finished('{"reward": 2.5}'), 1.0) == {"reported": 2.5}
    answered = finished("It is 3.")
    assert answered["answer"] == "It is 3."
    assert answered["output"] is None
    assert answered["reported_reward"] is None
    assert environment.reward(answered, 0.4) == {"score": 0.4}
    output_only = finished('{"output": {"total": 3}}')
    assert output_only["answer"] is None
    assert output_only["output"] == {"total": 3}
    assert environment.answer(output_only)["answer"] == '{"total": 3}'
    assert [environment.success(answered, score) for score in (0.79, 0.8)] == [False, True]
    assert environment.answer(answered) == {"answer": "It is 3.", "source_ids": [], "success": True}
    scenario = environment.scenarios("train", 1, 0)[0]
    assert environment.why_no_success(scenario, answered, 0.79) == "score 0.79 is below 0.8"
    assert environment.why_no_success(scenario, parts, 0.75) == "reward 0.75 is below 0.8"
    unfinished = environment.episode(scenario).outcome()
    assert environment.why_no_success(scenario, unfinished, 0.0) == "unfinished"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"reward": float("nan")}, "reward is a finite number"),
        ({"reward": True}, "reward is a finite number"),
        ({"reward": "1"}, "reward is a finite number"),
        ({"parts": {"right": None}}, "the part 'right' is null"),
        ({"parts": [1]}, "parts is an object"),
        ({"reward": 1, "parts": {"right": 0.5}}, "the parts add up to 0.5, and the reward is 1"),
        ({"output": {"a": float("inf")}}, "output is not JSON"),
        ({"reward": 1, "score": 1}, "an outcome has no score"),
        ({"reward": 1, "facts": {"looked_up": 1}}, "facts is an object of at most 16 names, true or false"),
        ({"reward": 1, "facts": ["looked_up"]}, "facts is an object of at most 16 names, true or false"),
        ({"reason": 1}, "reason is a text"),
        ([1], "an outcome is an object"),
    ],
)
def test_what_is_no_outcome_says_why(value: Any, message: str) -> None:
    with pytest.raises(BadOutcome, match=message):
        parse_outcome(value)


def test_what_an_agent_says_in_the_end_is_an_outcome_or_an_output() -> None:
    assert read_report('{"reward": 0}').reward == 0.0
    assert not read_report('{"reward": null, "reason": "no network"}').known
    assert read_report('{"answer": 3}').output == '{"answer": 3}'
    assert read_report("3").output == "3"
    assert outcome_of(3).reward == 3.0
    assert outcome_of("3").output == "3"
    assert outcome_of({"a": 1}).output == {"a": 1}
    assert outcome_of(None).reason == "the agent returned None"
    facts = {"reward": 1, "facts": {"looked_up": True, "a": False}}
    for outcome in (
        outcome_of(0),
        outcome_of({"parts": {"a": 0.5, "b": 1}}),
        outcome_of({"a": "b"}),
        outcome_of(facts),
    ):
        assert read_report(outcome.text()) == outcome


def test_runners() -> None:
    assert parse_runner({"pull": {}}) == Pull()
    assert parse_runner({"push": {"url": "https://a.example"}}) == Push("https://a.example")
    assert parse_runner({"python": "acme.agents:mail"}) == PythonFunction("acme.agents", "mail")
    wrong: list[Any] = [
        None,
        {},
        {"shell": "ls"},
        {"pull": {"a": 1}},
        {"push": {}},
        {"python": "os.system"},
        {"python": 1},
    ]
    for value in wrong:
        with pytest.raises(ValueError, match="runner"):
            parse_runner(value)
    with pytest.raises(ValueError, match="there is no runner"):
        build("agent", {"scenarios": TASKS}, Path()).scenarios("train", 1, 0)


def test_an_agent_elsewhere_cannot_be_asked_from_here() -> None:
    with pytest.raises(ValueError, match="open a session"):
        environment_of().ask({"question": "3?"})
    here = environment_of(runner={"python": "acme:agent"})
    assert dict(here.ask({"question": "3?"}).task) == {"question": "3?"}
    assert json.loads(here.episode(here.ask({"a": 1})).messages()[0]["content"]) == {"a": 1}
