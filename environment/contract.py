"""Checks that environments keep to their protocol: any unexpected exception or return value becomes a PluginFault.

Without these checks a mistake in a plug-in surfaces far from its cause: as a NaN in the weights, or as a type error in
the middle of the learn loop.
"""

import json
import math
import reprlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from learnloop_service.environment.base import (
    Ending,
    Environment,
    Episode,
    EpisodeFailed,
    EpisodeWithFields,
    Explained,
    Json,
    OpenedEpisode,
    Outcome,
    Reflective,
    ReportedEpisode,
    Rewarded,
    Scenario,
    Solvable,
    Split,
    TextEpisode,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    UnknownScenario,
)
from learnloop_service.environment.plugins import PluginFault

_ATTRIBUTES: Mapping[str, type] = {"name": str, "default_max_turns": int, "default_judge": str, "rubric": str}
_METHODS = ("scenarios", "ask", "episode", "reward", "success", "answer", "close")
_EPISODE_METHODS = ("messages", "call", "end", "outcome")
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 200
_excerpt = _repr.repr


def checked(name: str, environment: Environment) -> Environment:
    """Wrap the environment in checks of all its calls. Raises PluginFault if it is not an Environment."""
    contract = _Contract(name)
    for attribute, kind in _ATTRIBUTES.items():
        contract.require_attribute(environment, attribute, kind)
    contract.require_methods(environment, _METHODS)
    checks: list[type] = [kind for protocol, kind in _OPTIONAL if isinstance(environment, protocol)]
    wrapped: Environment = type("CheckedEnvironment", (*checks, _CheckedEnvironment), {})(contract, environment)
    return wrapped


def is_ours(owner: object) -> bool:
    """Return whether an environment or episode, checked or not, is part of this service."""
    inner = owner._inner if isinstance(owner, (_CheckedEnvironment, _CheckedEpisode)) else owner
    return type(inner).__module__.startswith("learnloop_service.")


class _Contract:
    """Calls a plug-in and reports its faults."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fault(self, what: str, cause: Exception | None = None) -> NoReturn:
        raise PluginFault(f"The environment {self.name!r}: {what}.") from cause

    def returned(self, method: str, value: object, expected: str) -> NoReturn:
        self.fault(f"{method}() returned {_excerpt(value)}; expected {expected}")

    def raised(self, method: str, error: Exception) -> NoReturn:
        self.fault(f"{method}() raised {type(error).__name__}: {error}", error)

    def call(self, method: Callable[..., Any], *arguments: Any, allowed: tuple[type[Exception], ...] = ()) -> Any:
        """Return the method's result; `allowed` are the exceptions that it is allowed to raise."""
        try:
            return method(*arguments)
        except Exception as error:
            if isinstance(error, (PluginFault, *allowed)):
                raise
            self.raised(method.__name__, error)

    def require_attribute(self, owner: object, name: str, kind: type) -> None:
        if not hasattr(owner, name):
            self.fault(f"it has no attribute {name}; expected {kind.__name__}")
        value = getattr(owner, name)
        if not isinstance(value, kind) or isinstance(value, bool):
            self.fault(f"its attribute {name} is {_excerpt(value)}; expected {kind.__name__}")

    def require_methods(self, owner: object, names: Sequence[str]) -> None:
        for name in names:
            if not callable(getattr(owner, name, None)):
                self.fault(f"{type(owner).__name__} has no method {name}()")

    def json_object(self, method: str, value: object) -> dict[str, Json]:
        """Return the value as a dict. Raises PluginFault unless it is a JSON object."""
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            self.returned(method, value, "a dict with string keys")
        self.json(method, dict(value))
        return dict(value)

    def json(self, method: str, value: Json) -> None:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            self.fault(f"{method}() returned what is not JSON ({error}): {_excerpt(value)}", error)

    def scenario(self, method: str, value: object) -> Scenario:
        if not isinstance(value, Scenario) or not isinstance(value.id, str):
            self.returned(method, value, "a Scenario with a string id")
        self.json_object(method, value.task)
        self.json_object(method, value.reference)
        return value


class _CheckedEnvironment:
    """An environment with checks of every call."""

    def __init__(self, contract: _Contract, inner: Environment) -> None:
        self._contract, self._inner = contract, inner
        self.name, self.rubric = inner.name, inner.rubric
        self.default_max_turns, self.default_judge = inner.default_max_turns, inner.default_judge
        self.synthetic = getattr(inner, "synthetic", False) is True

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        scenarios = self._contract.call(self._inner.scenarios, split, count, seed, start, allowed=(ValueError,))
        if not isinstance(scenarios, list) or not 1 <= len(scenarios) <= count:
            self._contract.returned("scenarios", scenarios, f"a list of up to {count} scenarios, and at least one")
        return [self._contract.scenario("scenarios", scenario) for scenario in scenarios]

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        return self._contract.scenario("ask", self._contract.call(self._inner.ask, task, allowed=(ValueError,)))

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Episode:
        episode = self._contract.call(self._inner.episode, scenario, max_turns, allowed=(UnknownScenario,))
        self._contract.require_methods(episode, _EPISODE_METHODS)
        kind = next((kind for protocol, kind in _EPISODES if isinstance(episode, protocol)), _CheckedEpisode)
        return kind(self._contract, episode)

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        parts = self._contract.call(self._inner.reward, outcome, score)
        if not isinstance(parts, dict) or not all(isinstance(name, str) and _is_finite(parts[name]) for name in parts):
            self._contract.returned("reward", parts, "a dict of finite numbers by name")
        return parts

    def success(self, outcome: Outcome, score: float) -> bool:
        success = self._contract.call(self._inner.success, outcome, score)
        if not isinstance(success, bool):
            self._contract.returned("success", success, "True or False")
        return success

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        answer = self._contract.json_object("answer", self._contract.call(self._inner.answer, outcome))
        if missing := {"answer", "source_ids", "success"} - answer.keys():
            self._contract.returned("answer", answer, f"{', '.join(sorted(missing))} as well")
        return answer

    def close(self) -> None:
        self._contract.call(self._inner.close)


class _Checks:
    """Checks of the methods of an optional protocol."""

    _contract: _Contract
    _inner: Any


class _CheckedReflective(_Checks):
    """Checks of the Reflective methods."""

    def showcase(self, seed: int) -> Scenario:
        return self._contract.scenario("showcase", self._contract.call(self._inner.showcase, seed))

    def reflect(self, rewarded: Sequence[Rewarded]) -> None:
        self._contract.call(self._inner.reflect, rewarded)

    def state(self) -> dict[str, Json]:
        return self._contract.json_object("state", self._contract.call(self._inner.state))

    def restore(self, state: Mapping[str, Json]) -> None:
        self._contract.call(self._inner.restore, state, allowed=(ValueError,))


class _CheckedSolvable(_Checks):
    """Checks of the Solvable methods."""

    def solution(self, scenario: Scenario) -> Sequence[ToolCall | str]:
        turns = self._contract.call(self._inner.solution, scenario)
        if not isinstance(turns, Sequence) or not all(isinstance(turn, ToolCall | str) for turn in turns):
            self._contract.returned("solution", turns, "a list of ToolCalls and texts")
        return turns


class _CheckedExplained(_Checks):
    """Checks of the Explained method."""

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        why: Any = self._contract.call(self._inner.why_no_success, scenario, outcome, score)
        if not isinstance(why, str | None):
            self._contract.returned("why_no_success", why, "a text or None")
        return why


_OPTIONAL: Sequence[tuple[type, type]] = (
    (Reflective, _CheckedReflective),
    (Solvable, _CheckedSolvable),
    (Explained, _CheckedExplained),
)
"""Optional protocols of an environment, each with its checks."""


class _CheckedEpisode:
    """An episode with checks of every call."""

    def __init__(self, contract: _Contract, inner: Episode) -> None:
        self._contract, self._inner = contract, inner
        for name, kind in (("scenario", Scenario), ("max_turns", int)):
            contract.require_attribute(inner, name, kind)
        self.scenario, self.max_turns = inner.scenario, inner.max_turns
        self.tools = self._tools()

    def _tools(self) -> Sequence[Tool]:
        tools = tuple(getattr(self._inner, "tools", ()))
        for tool in tools:
            if not isinstance(tool, Tool):
                self._contract.fault(f"its episodes have the tool {_excerpt(tool)}; expected a Tool")
        return tools

    async def open(self) -> None:
        if isinstance(self._inner, OpenedEpisode):
            await self._awaited("open", self._inner.open())
            self.tools = self._tools()

    async def close(self) -> None:
        if isinstance(self._inner, OpenedEpisode):
            await self._awaited("close", self._inner.close())

    def messages(self) -> list[dict[str, Json]]:
        messages = self._contract.call(self._inner.messages)
        if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
            self._contract.returned("messages", messages, "a list of messages in OpenAI's form")
        self._contract.json("messages", messages)
        return messages

    def fields(self) -> Mapping[str, str]:
        if not isinstance(self._inner, EpisodeWithFields):
            return {}
        fields = self._contract.call(self._inner.fields)
        if not isinstance(fields, Mapping) or not all(isinstance(text, str) for text in (*fields, *fields.values())):
            self._contract.returned("fields", fields, "texts by name")
        return fields

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        return self._result("call", await self._awaited("call", self._inner.call(name, arguments)))

    async def _awaited(self, method: str, work: Awaitable[object]) -> object:
        try:
            return await work
        except (PluginFault, EpisodeFailed, ToolError):
            raise
        except Exception as error:
            self._contract.raised(method, error)

    def end(self, reason: Ending, detail: str) -> None:
        self._contract.call(self._inner.end, reason, detail)

    def outcome(self) -> Outcome:
        return self._contract.json_object("outcome", self._contract.call(self._inner.outcome))

    def _result(self, method: str, result: object) -> ToolResult:
        if not isinstance(result, ToolResult) or not isinstance(result.content, str):
            self._contract.returned(method, result, "a ToolResult whose content is a string")
        return result


class _CheckedTextEpisode(_CheckedEpisode):
    """Checks of replies without a tool call."""

    _inner: Any

    def reply(self, text: str) -> ToolResult:
        return self._result("reply", self._contract.call(self._inner.reply, text))


class _CheckedReportedEpisode(_CheckedEpisode):
    """Checks of an episode whose agent reports its outcome."""

    _inner: Any

    def report(self, text: str) -> None:
        self._contract.call(self._inner.report, text, allowed=(ValueError,))


_EPISODES: Sequence[tuple[type, type[_CheckedEpisode]]] = (
    (ReportedEpisode, _CheckedReportedEpisode),
    (TextEpisode, _CheckedTextEpisode),
)
"""Optional protocols of an episode, each with its checks."""


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
