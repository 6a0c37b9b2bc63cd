"""What scenarios reveal: references that can be read beforehand, and tasks that are in two splits."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from learnloop_service.environment.base import Environment, Json, Scenario, Split
from learnloop_service.training.environment_check.agents import strings

_MIN_TEXT_CHARS = 3
"""Minimum number of characters of a text. Shorter ones are found by chance."""


def task_of(scenario: Scenario) -> str:
    """Return the task as text that can be compared."""
    return json.dumps(scenario.task, sort_keys=True)


def shared_tasks(drawn: Mapping[Split, Sequence[Scenario]]) -> dict[tuple[Split, Split], int]:
    """Return how many tasks (or ids) two splits have in common, for each pair that shares any."""
    tasks = {split: {task_of(scenario) for scenario in scenarios} for split, scenarios in drawn.items()}
    ids = {split: {scenario.id for scenario in scenarios} for split, scenarios in drawn.items()}
    counts = {
        (one, other): max(len(tasks[one] & tasks[other]), len(ids[one] & ids[other]))
        for one, other in combinations(drawn, 2)
    }
    return {pair: count for pair, count in counts.items() if count}


def leaks(environment: Environment, scenarios: Sequence[Scenario]) -> dict[str, list[str]]:
    """Return scenario ids by what is revealed and where.

    A member of the reference leaks if all its texts can be read. A text that scenarios with another reference also show
    is not a leak: it is one of the choices, or a word that all tasks have.
    """
    visible = [_visible_texts(environment, scenario) for scenario in scenarios]
    leaked: dict[str, list[str]] = {}
    for scenario, places in zip(scenarios, visible, strict=True):
        for member, value in scenario.reference.items():
            texts = {text for text in strings(value) if len(text.strip()) >= _MIN_TEXT_CHARS}
            elsewhere = [
                text
                for other, of_other in zip(scenarios, visible, strict=True)
                if other.reference.get(member) != value
                for text in of_other.values()
            ]
            if not texts or any(_contains_text(text, other) for other in elsewhere for text in texts):
                continue
            for where, whole in places.items():
                if all(_contains_text(text, whole) for text in texts):
                    leaked.setdefault(f"the reference's {member} stands in the {where}", []).append(scenario.id)
                    break
    return leaked


def _visible_texts(environment: Environment, scenario: Scenario) -> dict[str, str]:
    """Return the texts that an agent can read before its first call, by place."""
    episode = environment.episode(scenario)
    tools: list[Json] = [tool.openai() for tool in episode.tools]
    return {
        "opening messages": _text([message.get("content") for message in episode.messages()]),
        "tools": _text(tools),
        "task": _text(dict(scenario.task)),
    }


def _text(value: Json) -> str:
    return "\n".join(strings(value)).casefold()


def _contains_text(text: str, whole: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(text.strip().casefold())}(?!\w)", whole) is not None
