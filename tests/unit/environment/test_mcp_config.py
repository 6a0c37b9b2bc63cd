"""What a run can say of the environment `mcp`, without any server."""

import re
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment.base import Scenario
from learnloop_service.environment.registry import build

TASKS = [{"task": f"task {number}", "answer": str(number)} for number in range(10)]
UNUSED = Path("unused")


class Everything:
    """Access to everything."""

    max_servers = 1

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_tasks_are_split_once_and_for_all() -> None:
    environment = build("mcp", {"scenarios": TASKS}, UNUSED)
    again = build("mcp", {"scenarios": TASKS}, UNUSED)
    splits = {split: environment.scenarios(split, 100, seed=3) for split in ("train", "validation", "test")}
    assert {split: len({scenario.id for scenario in scenarios}) for split, scenarios in splits.items()} == {
        "train": 6, "validation": 2, "test": 2
    }  # fmt: skip
    assert splits["test"] == again.scenarios("test", 100, seed=3)
    number = int(splits["test"][0].id.removeprefix("given."))
    assert splits["test"][0] == Scenario(f"given.{number}", "test", {"task": f"task {number}"}, {"answer": str(number)})
    assert environment.episode(splits["test"][0]).messages()[1] == {"role": "user", "content": f"task {number}"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"colour": "red"}, "the config of mcp has no colour; it takes: allow_tools,"),
        ({"server": {"command": ["x"], "url": "https://x"}}, "server must be"),
        ({"server": {"command": "uvx time"}}, "server.command must be a list of strings"),
        ({"server": {"command": []}}, "server.command must be a list of strings"),
        ({"server": {"command": ["x"], "headers": {}}}, "server has no headers; it takes: command, env"),
        ({"server": {"url": "https://x", "headers": {"A": 1}}}, "server.headers must give names of secrets"),
        ({"scenarios": TASKS[:2]}, "a list of 3 to 10000 tasks"),
        ({"scenarios": [*TASKS, {"task": " "}]}, "scenario number 10: task must be a string"),
        ({"scenarios": [*TASKS, {"question": "x"}]}, "scenario number 10 has no question; it takes: id, task,"),
        ({"scenarios": [*TASKS, {"task": "x", "id": "given.0"}]}, "two scenarios have the same id"),
        ({"tool_timeout_s": 0}, "tool_timeout_s must be a number from 1 to 600"),
        ({"tool_timeout_s": True}, "tool_timeout_s must be a number"),
        ({"max_result_characters": 1e9}, "max_result_characters must be a number from 1 to 200000"),
        ({"allow_tools": []}, "allow_tools must be a list of strings that is not empty"),
    ],
)
def test_a_bad_config_is_said_plainly(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build("mcp", config, UNUSED)


def test_without_a_server_or_tasks_nothing_runs() -> None:
    with pytest.raises(ValueError, match="mcp needs a server"):
        build("mcp", {"scenarios": TASKS}, UNUSED, Everything())
    with pytest.raises(ValueError, match="mcp needs scenarios"):
        build("mcp", {"server": {"command": ["x"]}}, UNUSED, Everything()).scenarios("train", 1, seed=0)


async def test_an_episode_without_permission_is_not_opened() -> None:
    environment = build("mcp", {"server": {"command": ["true"]}}, UNUSED)
    episode: Any = environment.episode(environment.ask({"task": "x"}))
    with pytest.raises(Exception, match="permission"):
        await episode.open()


def test_what_is_no_task_cannot_be_asked() -> None:
    environment = build("mcp", {}, UNUSED)
    for task in ({}, {"task": 3}, {"task": "x", "more": 1}):
        with pytest.raises(ValueError, match="task"):
            environment.ask(task)
