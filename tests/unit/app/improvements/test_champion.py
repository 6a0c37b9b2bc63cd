"""The texts of a champion stand for the same messages and tools, and unchanged ones are no part of a proposal."""

from pathlib import Path

import pytest

from learnloop_service.app.improvements.champion import Champion, champion_of
from learnloop_service.environment import registry
from learnloop_service.environment.base import Environment, Scenario
from learnloop_service.training.prompt import InvalidPrompt, Prompt, opening


def environment_of(name: str) -> tuple[Environment, list[Scenario]]:
    environment = registry.build(name, {}, Path())
    return environment, environment.scenarios("train", 12, 0)


@pytest.mark.parametrize("name", ["email_search", "sales_email"])
def test_all_texts_together_are_the_environments_own_in_tasks_that_were_not_looked_at(name: str) -> None:
    environment, scenarios = environment_of(name)
    champion = champion_of(environment, scenarios[:3], None)
    assert "{original}" not in champion.parts.values()
    for scenario in scenarios[3:]:
        begins = opening(environment.episode(scenario), Prompt(champion.parts))
        plain = opening(environment.episode(scenario), None)
        assert (begins.messages, begins.tools) == (plain.messages, plain.tools)


def test_what_differs_from_task_to_task_is_a_placeholder() -> None:
    environment, scenarios = environment_of("email_search")
    champion = champion_of(environment, scenarios[:3], Prompt({"tool:read_email": "Open {original}."}))
    assert "inbox of {inbox_address}. Today is {query_date}." in champion.parts["system"]
    assert champion.parts["tool:read_email"] == "Open {original}."
    assert list(champion.placeholders) == ["inbox_address", "query_date", "max_turns", "original"]


class _Drawn:
    """An episode whose system message differs from task to task by what it offers no placeholder for."""

    tools = ()
    max_turns = 3

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": f"Task {self.scenario.id} of {{one}}."}]


class _Environment:
    def episode(self, scenario: Scenario) -> _Drawn:
        return _Drawn(scenario)


def test_a_text_that_no_placeholder_explains_is_the_original_and_braces_are_kept() -> None:
    environment: Environment = _Environment()  # type: ignore[assignment]
    scenarios = [Scenario(id, "train", {}) for id in ("a", "b")]
    assert champion_of(environment, scenarios, None).parts == {"system": "{original}"}
    assert champion_of(environment, scenarios[:1], None).parts == {"system": "Task a of {{one}}."}
    tools = [{"function": {"name": "look", "description": "Look {up}.", "parameters": {"properties": {"id": {}}}}}]
    assert champion_of(environment, scenarios, None, tools).parts["tool:look"] == "Look {{up}}."


def test_agents_with_texts_of_their_own_have_those_of_the_prompt_alone() -> None:
    rows = [
        {"task": {"q": f"{split} {n}"}, "split": split} for n in range(3) for split in ("train", "validation", "test")
    ]
    environment = registry.build("agent", {"scenarios": rows, "runner": {"pull": {}}}, Path())
    scenarios = environment.scenarios("train", 2, 0)
    assert champion_of(environment, scenarios, None) == Champion(None, {}, [])
    assert champion_of(environment, scenarios, Prompt({"skill:x": "Do."})).parts == {"skill:x": "Do."}


def test_a_proposal_has_what_was_changed_and_the_champions_own_parts() -> None:
    champion = Champion(Prompt({"system": "a"}), {"system": "a", "tool:x": "b", "tool:y": "c"}, [])
    proposal = champion.proposed({"system": "a", "tool:x": "b2", "tool:y": "c", "skill:z": "d"})
    assert proposal.parts == {"system": "a", "tool:x": "b2", "skill:z": "d"}
    with pytest.raises(InvalidPrompt, match="there are no parts"):
        Champion(None, {"tool:x": "b"}, []).proposed({"tool:x": "b"})
