"""The environment `answers`: questions with expected answers, and optionally facts to read or tools of an MCP server.

The config is that of `mcp` without the need for a server. A scenario is `{"question", "answer", "facts"?, "id"?,
"split"?}`.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import Environment, Json, Outcome, Scenario, ToolError, ToolResult
from learnloop_service.environment.config_checks import text
from learnloop_service.environment.explained import shortened
from learnloop_service.environment.given_scenarios import check_keys, split_of
from learnloop_service.environment.mcp.config import McpConfig, parse
from learnloop_service.environment.mcp.environment import McpEnvironment, McpEpisode
from learnloop_service.environment.traits import Traits

NAME = "answers"
MAX_QUESTIONS = 200_000
_PROMPTS = files("learnloop_service.environment.answers") / "prompts"
_SYSTEM, _RUBRIC = ((_PROMPTS / f"{name}.txt").read_text(encoding="utf-8").strip() for name in ("system", "rubric"))
_SHOWN = 100


class AnswersEnvironment(McpEnvironment):
    """Questions with expected answers. Its oracle replies with the expected answer."""

    name = NAME
    default_judge = "reference"
    rubric = _RUBRIC
    example = '{"question": "...", "answer": "..."}'

    def __init__(self, config: McpConfig) -> None:
        super().__init__(config)
        self._has_tools = config.server is not None
        self.default_max_turns = McpEnvironment.default_max_turns if self._has_tools else 1

    def admit(self, access: Access) -> None:
        """Raise ValueError if the operator does not allow the server. Without one, nothing is needed."""
        if self._has_tools:
            super().admit(access)

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario for `{"question": "...", "facts"?: "..."}`. Raises ValueError."""
        check_keys(dict(task), "a question", ("question", "facts"))
        return Scenario("ask", "test", _task(dict(task), "the question"))

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> McpEpisode:
        kind = _Episode if self._has_tools else _PlainEpisode
        return kind(self, scenario, self._config.instructions, max_turns or self.default_max_turns)

    def solution(self, scenario: Scenario) -> Sequence[str]:
        return [str(scenario.reference["answer"])]

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        expected = scenario.reference.get("answer")
        if outcome["finish"] != "answer" or expected is None or score is None:
            return super().why_no_success(scenario, outcome, score)
        return f"answered {shortened(str(outcome['answer']), _SHOWN)!r}; expected {shortened(expected, _SHOWN)!r}"


class _Episode(McpEpisode):
    """An attempt at a question. The facts stand before it."""

    @property
    def user_message(self) -> str:
        task = self.scenario.task
        return f"{task['facts']}\n\n{task['question']}" if "facts" in task else str(task["question"])


class _PlainEpisode(_Episode):
    """An attempt without tools."""

    async def open(self) -> None:
        return None

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        raise ToolError(f"there is no tool {name!r}: answer in plain text")


def scenario_of(row: Json, number: int) -> Scenario:
    """Return the scenario of a row. Raises ValueError, which names the row by its number."""
    where = f"scenario number {number}"
    check_keys(row, where, ("id", "question", "facts", "answer", "split"))
    id = text(row.get("id", f"given.{number}"), f"{where}: id")
    return Scenario(
        id, split_of(row, where), _task(row, where), {"answer": text(row.get("answer"), f"{where}: answer")}
    )


def _task(row: Mapping[str, Json], where: str) -> dict[str, Json]:
    keys = ["question"] if row.get("facts") is None else ["question", "facts"]
    return {key: text(row.get(key), f"{where}: {key}") for key in keys}


def build(config: Mapping[str, Json], data_dir: Path) -> Environment:
    """Build the environment. Raises ValueError for a bad config. `/ask` needs no scenarios."""
    settings = {"instructions": _SYSTEM, **config}
    return AnswersEnvironment(parse(settings, NAME, "questions", MAX_QUESTIONS, scenario_of))


_TASK: Mapping[str, Json] = {
    "type": "object",
    "required": ["question"],
    "properties": {
        "question": {"type": "string", "title": "Question", "examples": ["How long can I return shoes?"]},
        "facts": {"type": "string", "title": "Facts", "description": "What the agent is told before the question."},
    },
}
TRAITS = Traits(
    description="Answers questions of your own, which the page Data imports. The base learnloop/tiny needs "
    "demonstrations of the oracle first (Warm start); for more, add a base of 1.5B parameters: learnloop bases add "
    "Qwen/Qwen2.5-1.5B-Instruct.",
    datasets={"scenarios": ()},
    asked_without=frozenset({"scenarios"}),
    task=_TASK,
)
