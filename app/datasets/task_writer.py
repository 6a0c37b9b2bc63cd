"""Writes tasks for the tools of an MCP server with a language model: scenarios of the environment `mcp`."""

import json
from collections.abc import Callable, Sequence
from importlib.resources import files

from learnloop_service.app.datasets.model_writer import NotWritten, completed, listed
from learnloop_service.environment.base import Tool
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.words import words_of
from learnloop_service.judges.base import JudgeModel
from learnloop_service.judges.llm import JudgeUnavailable

_PROMPT = files("learnloop_service.app.datasets").joinpath("prompts/tasks.txt").read_text(encoding="utf-8")
_AT_A_TIME = 10
_SHOWN = 40
_MAX_CHARACTERS = 2_000
_FRUITLESS = 3
"""Number of replies in a row without a new task after which the model is not asked again."""
_SCHEMA = {
    "type": "object",
    "properties": {"tasks": {"type": "array", "items": {"type": "string"}}},
    "required": ["tasks"],
    "additionalProperties": False,
}


async def write_tasks(
    model: JudgeModel, tools: Sequence[Tool], count: int, advance: Callable[[int], None]
) -> list[dict[str, Json]]:
    """Return up to `count` distinct scenarios; fewer if the model runs out. `advance` is called with the number so far.

    Raises NotWritten if the model cannot be asked, or wrote no task.
    """
    tasks: dict[str, str] = {}
    fruitless = 0
    while len(tasks) < count and fruitless < _FRUITLESS:
        before = len(tasks)
        prompt = _prompt(tools, min(_AT_A_TIME, count - before), list(tasks.values()))
        try:
            answer = await completed(model, prompt, _SCHEMA)
        except JudgeUnavailable as error:
            raise NotWritten(f"{model.name} cannot be asked: {error}") from error
        for task in _parsed(answer.text)[: count - before]:
            tasks.setdefault(words_of(task), task)
        fruitless = 0 if len(tasks) > before else fruitless + 1
        advance(len(tasks))
    if not tasks:
        raise NotWritten(f"{model.name} wrote no task that can be used")
    return [{"task": task} for task in tasks.values()]


def _prompt(tools: Sequence[Tool], count: int, written: Sequence[str]) -> str:
    earlier = "".join(f"- {task}\n" for task in written[-_SHOWN:])
    return _PROMPT.format(
        count=count,
        written=f"\nThese were written before; write others:\n{earlier}" if earlier else "",
        tools=json.dumps([tool.openai()["function"] for tool in tools], ensure_ascii=False, indent=1),
    )


def _parsed(text: str) -> list[str]:
    """Return the tasks in a model's reply."""
    written = [task.strip() for task in listed(text, "tasks") or () if isinstance(task, str)]
    return [task for task in written if 0 < len(task) <= _MAX_CHARACTERS]
