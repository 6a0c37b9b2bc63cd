"""The environment `mcp`: the tools of any MCP server, and tasks to do with them. It needs the extra `mcp`."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import (
    Ending,
    Environment,
    EpisodeFailed,
    Json,
    Outcome,
    Scenario,
    Split,
    Tool,
    ToolResult,
)
from learnloop_service.environment.explained import ending, too_low
from learnloop_service.environment.installation import needs_extra
from learnloop_service.environment.mcp.config import HttpServer, McpConfig, parse, scenario_of_task
from learnloop_service.environment.mcp.pool import SessionPool
from learnloop_service.environment.mcp.session import McpSession
from learnloop_service.environment.scenario_order import draw
from learnloop_service.environment.traits import Traits

NAME = "mcp"
_SUCCESS_FROM = 0.5
"""Lowest score of a successful rollout."""
_RUBRIC = files("learnloop_service.environment.mcp").joinpath("prompts/rubric.txt").read_text(encoding="utf-8").strip()


class McpEnvironment:
    """Tasks on an MCP server. Each episode has its own session, so episodes share only what the server itself
    shares."""

    name = NAME
    default_max_turns = 8
    default_judge = "ruler"
    rubric = _RUBRIC
    example = '{"task": "..."}'

    def __init__(self, config: McpConfig) -> None:
        self._config = config
        self._access: Access | None = None
        self._pool: SessionPool | None = None

    def admit(self, access: Access) -> None:
        """Raise ValueError if no server is configured or the operator does not allow it."""
        server = self._config.server
        if server is None:
            raise ValueError('mcp needs a server: {"command": [...]} or {"url": ...}')
        if find_spec("mcp") is None:
            raise ValueError(f"mcp needs {needs_extra('mcp')}")
        if isinstance(server, HttpServer):
            access.check_url(server.url)
            named = server.headers
        else:
            access.check_command(server.command)
            named = server.env
        for secret in named.values():
            access.secret(server.name, secret)
        self._access = access

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        """Return scenarios from the config. Raises ValueError if it has none."""
        if self._config.scenarios is None:
            raise ValueError(f"{self.name} needs scenarios: a list such as {self.example}, at least three")
        return list(
            draw([scenario for scenario in self._config.scenarios if scenario.split == split], count, seed, start)
        )

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario for `{"task": "..."}`. Raises ValueError."""
        return scenario_of_task(task)

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> "McpEpisode":
        """Return an episode whose session starts when the episode is opened."""
        return McpEpisode(self, scenario, self._config.instructions, max_turns or self.default_max_turns)

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return the judge's verdict, minus a penalty for a malformed tool call."""
        return {"score": score, "malformed": -0.5 if outcome["finish"] == "malformed" else 0.0}

    def success(self, outcome: Outcome, score: float) -> bool:
        """Whether there is an answer with a score of at least one half."""
        return outcome["finish"] == "answer" and score >= _SUCCESS_FROM

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        return ending(outcome) if outcome["finish"] != "answer" else too_low("score", score, _SUCCESS_FROM)

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        """Return what `/ask` returns; there are no sources, because MCP tools do not identify any."""
        answered = outcome["finish"] == "answer"
        note = {} if answered else {"note": outcome["detail"]}
        return {"answer": outcome["answer"], "source_ids": [], "success": answered, **note}

    async def session(self) -> McpSession:
        """Return a session for one episode. Raises EpisodeFailed."""
        access = self._access
        if access is None:
            raise EpisodeFailed("the operator's permission to reach the MCP server was not asked for")
        if self._pool is None:
            self._pool = SessionPool(lambda: McpSession(self._config, access), access.max_servers)
        return await self._pool.take()

    def close(self) -> None:
        """End all sessions."""
        if self._pool is not None:
            self._pool.close()


class McpEpisode:
    """One attempt at a task. A reply without a tool call is the answer."""

    def __init__(self, environment: McpEnvironment, scenario: Scenario, instructions: str, max_turns: int) -> None:
        self.scenario = scenario
        self.max_turns = max_turns
        self.tools: Sequence[Tool] = ()
        self._environment = environment
        self._instructions = instructions
        self._session: McpSession | None = None
        self._outcome: dict[str, Json] = {
            "finish": None, "detail": None, "answer": None, "tool_calls": 0, "tool_errors": 0, "max_turns": max_turns
        }  # fmt: skip

    async def open(self) -> None:
        """Take a session from the pool and wait for its tools. Raises EpisodeFailed."""
        self._session = await self._environment.session()
        self.tools = self._session.tools

    async def close(self) -> None:
        """End the session; its server shuts down in the background."""
        if self._session is not None:
            self._session.close()

    def messages(self) -> list[dict[str, Json]]:
        """Return the instructions and the task."""
        return [{"role": "system", "content": self._instructions}, {"role": "user", "content": self.user_message}]

    @property
    def user_message(self) -> str:
        """The message of the user."""
        return str(self.scenario.task["task"])

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Return the server's reply to the call. An unknown tool or wrong arguments also give a result, so that a model
        can learn from it. Raises EpisodeFailed."""
        if self._session is None:
            raise EpisodeFailed("the episode is not open")
        result = await self._session.call(name, arguments)
        self._outcome["tool_calls"] += 1
        self._outcome["tool_errors"] += result.failed
        return ToolResult(result.text)

    def reply(self, text: str) -> ToolResult:
        """Take the reply as the answer."""
        self._outcome |= {"finish": "answer", "answer": text}
        return ToolResult("", final=True)

    def end(self, reason: Ending, detail: str) -> None:
        """Record that the episode ended without an answer."""
        self._outcome |= {"finish": reason, "detail": detail}

    def outcome(self) -> Outcome:
        """Return `finish` (`answer`, `out_of_turns`, `full_context`, `malformed`, or None), `detail`, `answer`,
        `tool_calls`, `tool_errors` (how many of the calls failed), and `max_turns`."""
        return dict(self._outcome)


def build(config: Mapping[str, Json], data_dir: Path) -> Environment:
    """Build the environment. Raises ValueError for a bad config. Server and scenarios are optional: tasks can be
    checked without a server, and `/ask` needs no scenarios."""
    return McpEnvironment(parse(config))


_TASK: Mapping[str, Json] = {
    "type": "object",
    "required": ["task"],
    "properties": {"task": {"type": "string", "title": "Task", "description": "What a user would ask for."}},
}
TRAITS = Traits(
    description="Does tasks of your own with the tools of any MCP server.",
    datasets={"scenarios": ()},
    asked_without=frozenset({"scenarios"}),
    task=_TASK,
)
