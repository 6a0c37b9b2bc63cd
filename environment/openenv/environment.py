"""The environment `openenv`: a running OpenEnv server whose actions are tools and which gives the rewards."""

import asyncio
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import (
    REPORTED_REWARD,
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
from learnloop_service.environment.given_scenarios import SPLITS
from learnloop_service.environment.installation import needs_extra
from learnloop_service.environment.openenv.actions import (
    LIST_TOOLS,
    action_tool,
    call_action,
    has_tools,
    listed_tools,
    text_of,
)
from learnloop_service.environment.openenv.config import OpenEnvConfig, parse, scenario_of_task
from learnloop_service.environment.openenv.connection import ActionRefused, Observation, OpenEnvConnection, ServerFull
from learnloop_service.environment.openenv.schema import schema_of_actions
from learnloop_service.environment.scenario_order import draw
from learnloop_service.environment.server_tools import failure, offered
from learnloop_service.environment.traits import Traits

NAME = "openenv"
_RESET_TIMEOUT_S = 60.0
_FULL_PAUSE_S = 0.5
_FULL_TIMEOUT_S = 600.0
"""Longest wait for a place on a full server, in seconds; others can be using it."""
_SEEDS = 1 << 20


class OpenEnvEnvironment:
    """Episodes on an OpenEnv server, each with its own connection and instance of the environment."""

    name = NAME
    default_max_turns = 16
    default_judge = "reported"
    rubric = "The rollout that does more of the task is better."

    def __init__(self, config: OpenEnvConfig) -> None:
        self.config = config
        self._access: Access | None = None
        self._places: asyncio.Semaphore | None = None
        self._schema: Mapping[str, Json] | None = None

    def admit(self, access: Access) -> None:
        """Raise ValueError if no server is configured or the operator does not allow it."""
        if self.config.url is None:
            raise ValueError('openenv needs a url: where the server runs, such as "https://wordle.example"')
        if find_spec("websockets") is None:
            raise ValueError(f"openenv needs {needs_extra('openenv')}")
        access.check_url(self.config.url)
        self._headers(access)
        self._access = access

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        """Return scenarios of the config or, if it has none, episodes by seed. Each seed belongs to the same split in
        all runs."""
        listed = self.config.scenarios
        if listed is not None:
            return list(draw([scenario for scenario in listed if scenario.split == split], count, seed, start))
        first, offset = Random(f"openenv:{seed}").randrange(_SEEDS), SPLITS.index(split)
        seeds = [len(SPLITS) * (first + number) + offset for number in range(start, start + count)]
        return [Scenario(f"seed.{scenario_seed}", split, {"reset": {"seed": scenario_seed}}) for scenario_seed in seeds]

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario for `{"reset": {...}, "task": "..."}`, both optional. Raises ValueError."""
        return scenario_of_task(task)

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> "OpenEnvEpisode":
        """Return an episode that starts when it is opened."""
        return OpenEnvEpisode(self, scenario, max_turns or self.default_max_turns)

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return the environment's reward, or the judge's verdict if there is none."""
        reported = outcome[REPORTED_REWARD]
        return {"score": score} if reported is None else {"reward": float(reported)}

    def success(self, outcome: Outcome, score: float) -> bool:
        """Whether the reward, or without one the score, is high enough."""
        reported = outcome[REPORTED_REWARD]
        return bool((score if reported is None else reported) >= self.config.success_from)

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        reported = outcome[REPORTED_REWARD]
        name, value = ("score", score) if reported is None else ("reward", reported)
        low = too_low(name, value, self.config.success_from)
        return "; ".join(filter(None, (low, ending(outcome) if outcome["detail"] else None))) or None

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        """Return what `/ask` returns: the agent's last message, or otherwise its last observation."""
        answer = outcome["answer"] if outcome["answer"] is not None else outcome["observation"]
        note = {"note": outcome["detail"]} if outcome["detail"] else {}
        return {"answer": answer, "source_ids": [], "success": self.success(outcome, 0.0), **note}

    async def connect(self) -> OpenEnvConnection:
        """Wait for a free place and connect for one episode; `leave` frees the place. Raises EpisodeFailed."""
        url, access = self._reached()
        if self._places is None:
            self._places = asyncio.Semaphore(access.max_servers)
        await self._places.acquire()
        try:
            return await OpenEnvConnection.open(url, self._headers(access), access)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Free an episode's place."""
        assert self._places is not None, "no episode was connected"
        self._places.release()

    async def action_schema(self) -> Mapping[str, Json]:
        """Return the JSON schema of the server's actions. Raises EpisodeFailed."""
        if self._schema is None:
            url, access = self._reached()
            self._schema = await schema_of_actions(url, self._headers(access), access)
        return self._schema

    def _reached(self) -> tuple[str, Access]:
        if self._access is None or self.config.url is None:
            raise EpisodeFailed("the operator's permission to reach the OpenEnv server was not asked for")
        return self.config.url, self._access

    def _headers(self, access: Access) -> dict[str, str]:
        """Return the headers with their secrets. Raises ValueError if the operator has not set one."""
        assert self.config.url is not None, "no server"
        return {header: access.secret(self.config.url, name) for header, name in self.config.headers.items()}

    def close(self) -> None:
        """Do nothing: all resources belong to episodes."""


class OpenEnvEpisode:
    """One attempt. It ends when the environment says so, or when the model replies without a tool call."""

    def __init__(self, environment: OpenEnvEnvironment, scenario: Scenario, max_turns: int) -> None:
        self.scenario = scenario
        self.max_turns = max_turns
        self.tools: Sequence[Tool] = ()
        self._environment = environment
        self._config = environment.config
        self._connection: OpenEnvConnection | None = None
        self._names: Mapping[str, str] | None = None
        """The server's tool names by the names that the model uses; None if the action itself is the tool."""
        self._rewards: list[float] = []
        self._steps = self._errors = 0
        self._finish, self._detail = "unfinished", ""
        self._first = self._last = ""
        self._answer: str | None = None

    async def open(self) -> None:
        """Start the episode on the server. Raises EpisodeFailed."""
        schema = await self._environment.action_schema()
        first = await self._reset_when_free(has_tools(schema))
        self._first = self._last = self._text(first)
        if first.done:
            raise EpisodeFailed("the OpenEnv server's episode was over before it began")
        if self._names is None:
            self.tools = [action_tool(schema)]

    async def _reset_when_free(self, with_tools: bool) -> Observation:
        """Reset the environment as soon as the server has room, and return the first observation."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _FULL_TIMEOUT_S
        while True:
            self._connection = await self._environment.connect()
            try:
                if with_tools:
                    await self._find_tools(self._connection)
                return await self._connection.reset(self.scenario.task["reset"], _RESET_TIMEOUT_S)
            except ServerFull as full:
                await self.close()
                if loop.time() > until:
                    raise EpisodeFailed(f"the OpenEnv server is full: {full}") from full
            await asyncio.sleep(_FULL_PAUSE_S)

    async def _find_tools(self, connection: OpenEnvConnection) -> None:
        try:
            listed = listed_tools(await connection.step(LIST_TOOLS, _RESET_TIMEOUT_S))
        except ActionRefused as refused:
            raise EpisodeFailed(f"the OpenEnv server did not list its tools: {refused}") from refused
        by_name = offered(listed, self._config.allow_tools, "the OpenEnv server")
        self.tools = [tool for _, tool in by_name.values()]
        self._names = {name: theirs for name, (theirs, _) in by_name.items()}

    async def close(self) -> None:
        """Disconnect, which ends the episode on the server."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            try:
                await connection.close()
            finally:
                self._environment.leave()

    def messages(self) -> list[dict[str, Json]]:
        """Return the instructions, then the task and the first observation."""
        content = "\n\n".join(part for part in (self.scenario.task.get("task"), self._first) if part)
        return [{"role": "system", "content": self._config.instructions}, {"role": "user", "content": content}]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Return the observation after the step, or the environment's refusal, from which a model can also learn.
        Raises EpisodeFailed."""
        if self._connection is None:
            raise EpisodeFailed("the episode is not open")
        if name not in (names := [tool.name for tool in self.tools]):
            return self._refused(f"there is no tool {name!r}; there are: {', '.join(names)}")
        action = arguments if self._names is None else call_action(self._names[name], arguments)
        try:
            observation = await self._connection.step(action, self._config.step_timeout_s)
        except ActionRefused as refused:
            return self._refused(str(refused))
        except ServerFull as full:
            raise EpisodeFailed(f"the OpenEnv server ended the episode: {full}") from full
        self._steps += 1
        if observation.reward is not None:
            self._rewards.append(observation.reward)
        self._last = self._text(observation)
        if observation.done:
            self._finish = "done"
        return ToolResult(self._last, final=observation.done)

    def _refused(self, why: str) -> ToolResult:
        self._errors += 1
        return ToolResult(failure(why[: self._config.max_result_characters]).text)

    def _text(self, observation: Observation) -> str:
        text = text_of(observation, self._config.max_result_characters)
        self._errors += text.failed
        return text.text

    def reply(self, text: str) -> ToolResult:
        """Take the agent's reply as its last message."""
        self._finish, self._answer = "answer", text
        return ToolResult("", final=True)

    def end(self, reason: Ending, detail: str) -> None:
        """Record that the rollout ended before the environment did."""
        self._finish, self._detail = reason, detail

    def outcome(self) -> Outcome:
        """Return `finish` (`done`, `answer`, `out_of_turns`, `full_context`, `malformed`, `unfinished`) and `detail`;
        the reward; `steps`, and the `rewards` of those that had one; `errors` (the number of refused actions); the
        `answer` (the reply without a tool call); and the last `observation`."""
        return {
            "finish": self._finish,
            "detail": self._detail,
            REPORTED_REWARD: self._reward(),
            "steps": self._steps,
            "rewards": list(self._rewards),
            "errors": self._errors,
            "answer": self._answer,
            "observation": self._last,
        }

    def _reward(self) -> float | None:
        """Return the reward: 0 without a step; None (unknown) if no step had a reward."""
        if not self._rewards:
            return None if self._steps else 0.0
        return sum(self._rewards) if self._config.reward == "sum" else self._rewards[-1]


def build(config: Mapping[str, Json], data_dir: Path) -> Environment:
    """Build the environment. Raises ValueError for a bad config. The server is optional: scenarios can be checked
    without it."""
    return OpenEnvEnvironment(parse(config))


TRAITS = Traits(
    description="Acts in an environment that an OpenEnv server runs.",
    datasets={"scenarios": ()},
    asked_without=frozenset({"scenarios"}),
    reward_settings=frozenset({"success_from"}),
)
