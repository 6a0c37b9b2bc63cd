"""Environments of others: what they do wrong is said with their name, the method and what was expected."""

import math
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment import plugins
from learnloop_service.environment.base import (
    Environment,
    EpisodeFailed,
    Reflective,
    Scenario,
    TextEpisode,
    Tool,
    ToolError,
    ToolResult,
)
from learnloop_service.environment.contract import checked
from learnloop_service.environment.explained import why_no_success
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.environment.registry import build
from learnloop_service.judges.base import JudgeServices
from learnloop_service.judges.registry import build as build_judge

SCENARIO = Scenario("s1", "train", {"task": "add"})


class Counting:
    """An environment that keeps to the protocol."""

    name = "counting"
    default_max_turns = 2
    default_judge = "reference"
    rubric = "More is better."

    def scenarios(self, split: str, count: int, seed: int, start: int = 0) -> Any:
        return [SCENARIO]

    def ask(self, task: Mapping[str, Any]) -> Any:
        return SCENARIO

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Any:
        return CountingEpisode()

    def reward(self, outcome: Mapping[str, Any], score: float) -> Any:
        return {"count": 1.0}

    def success(self, outcome: Mapping[str, Any], score: float) -> Any:
        return True

    def answer(self, outcome: Mapping[str, Any]) -> Any:
        return {"answer": "2", "source_ids": [], "success": True}

    def close(self) -> None:
        pass


class Explaining(Counting):
    """One that also says why an outcome is not a success."""

    def why_no_success(self, scenario: Scenario, outcome: Mapping[str, Any], score: float | None) -> Any:
        return outcome["why"]


class CountingEpisode:
    """An episode that keeps to the protocol."""

    scenario = SCENARIO
    max_turns = 2
    tools: tuple[Tool, ...] = (Tool("add", "Adds.", {"type": "object"}),)

    def messages(self) -> Any:
        return [{"role": "user", "content": "1 + 1"}]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name != "add":
            raise ToolError(f"no tool {name}")
        return ToolResult("2", final=True)

    def end(self, reason: str, detail: str) -> None:
        pass

    def outcome(self) -> Any:
        return {"finish": "answered"}


def returning(value: Any) -> Callable[..., Any]:
    def method(*arguments: Any, **named: Any) -> Any:
        return value

    return method


def raising(error: Exception, name: str) -> Callable[..., Any]:
    def method(*arguments: Any, **named: Any) -> Any:
        raise error

    method.__name__ = name
    return method


def environment_with(**methods: Any) -> Environment:
    return checked("toy", type("Toy", (Counting,), {k: staticmethod(v) for k, v in methods.items()})())


def use(environment: Environment) -> None:
    """Everything that the learn loop and `/ask` do with an environment."""
    (scenario,) = environment.scenarios("train", 1, 0)
    environment.ask({"question": "?"})
    outcome = environment.episode(scenario).outcome()
    environment.reward(outcome, 1.0)
    environment.success(outcome, 1.0)
    environment.answer(outcome)
    environment.close()


def test_an_environment_that_keeps_to_the_protocol_is_let_be() -> None:
    environment = environment_with()
    use(environment)
    assert not isinstance(environment, Reflective)
    assert not isinstance(environment.episode(SCENARIO), TextEpisode)
    assert environment.name == "counting"
    assert environment.default_max_turns == 2


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("scenarios", [], r"scenarios\(\) returned \[\]; expected a list of up to 1 scenarios, and at least one"),
        ("scenarios", None, r"scenarios\(\) returned None"),
        ("scenarios", [{"id": 1}], r"scenarios\(\) returned \{'id': 1\}; expected a Scenario"),
        ("scenarios", [Scenario("x", "train", {"at": {1, 2}})], r"scenarios\(\) returned what is not JSON"),
        ("ask", {"task": 1}, r"ask\(\) returned \{'task': 1\}; expected a Scenario"),
        ("episode", object(), r"object has no method messages\(\)"),
        ("reward", {"count": math.nan}, r"reward\(\) returned \{'count': nan\}; expected a dict of finite numbers"),
        ("reward", {"count": math.inf}, "expected a dict of finite numbers by name"),
        ("reward", {"count": True}, "expected a dict of finite numbers by name"),
        ("reward", 1.0, r"reward\(\) returned 1.0; expected a dict of finite numbers by name"),
        ("success", 1.0, r"success\(\) returned 1.0; expected True or False"),
        ("answer", {"answer": "2"}, "expected source_ids, success as well"),
        ("answer", "2", r"answer\(\) returned '2'; expected a dict"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(method: str, value: Any, message: str) -> None:
    environment = environment_with(**{method: returning(value)})
    with pytest.raises(PluginFault, match=rf"The environment 'toy': .*{message}"):
        use(environment)


@pytest.mark.parametrize("method", ["scenarios", "ask", "episode", "reward", "success", "answer", "close"])
def test_an_exception_is_named_with_its_method(method: str) -> None:
    environment = environment_with(**{method: raising(KeyError("path"), method)})
    with pytest.raises(PluginFault, match=rf"The environment 'toy': {method}\(\) raised KeyError: 'path'") as raised:
        use(environment)
    assert isinstance(raised.value.__cause__, KeyError)


def test_what_a_user_did_wrong_is_told_in_the_environments_words() -> None:
    environment = environment_with(ask=raising(ValueError("question must be a text"), "ask"))
    with pytest.raises(ValueError, match=r"^question must be a text$"):
        use(environment)


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("messages", [], r"messages\(\) returned \[\]; expected a list of messages"),
        ("messages", "hello", r"messages\(\) returned 'hello'"),
        ("outcome", {"found": math.nan}, r"outcome\(\) returned what is not JSON"),
        ("outcome", {1: 2}, r"outcome\(\) returned \{1: 2\}; expected a dict with string keys"),
    ],
)
def test_a_wrong_value_of_an_episode_is_named(method: str, value: Any, message: str) -> None:
    kind = type("Toy", (CountingEpisode,), {method: staticmethod(returning(value))})
    episode = environment_with(episode=returning(kind())).episode(SCENARIO)
    with pytest.raises(PluginFault, match=f"The environment 'toy': {message}"):
        getattr(episode, method)()


async def test_a_tool_that_fails_is_named_and_a_bad_call_is_not_its_fault() -> None:
    episode = environment_with().episode(SCENARIO)
    assert (await episode.call("add", {})).final
    with pytest.raises(ToolError):
        await episode.call("subtract", {})

    class Failing(CountingEpisode):
        async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
            return 2 / 0 if name == "divide" else "2"

    episode = environment_with(episode=returning(Failing())).episode(SCENARIO)
    with pytest.raises(PluginFault, match=r"call\(\) raised ZeroDivisionError"):
        await episode.call("divide", {})
    with pytest.raises(PluginFault, match=r"call\(\) returned '2'; expected a ToolResult"):
        await episode.call("add", {})


class Opened(CountingEpisode):
    """An episode whose tools are known once it is open."""

    tools: tuple[Tool, ...] = ()

    async def open(self) -> None:
        self.tools = CountingEpisode.tools

    async def close(self) -> None:
        pass


async def test_an_episode_that_is_opened_has_its_tools_then() -> None:
    episode: Any = environment_with(episode=returning(Opened())).episode(SCENARIO)
    assert episode.tools == ()
    await episode.open()
    assert [tool.name for tool in episode.tools] == ["add"]
    await episode.close()
    plain: Any = environment_with().episode(SCENARIO)
    await plain.open()
    await plain.close()


@pytest.mark.parametrize("method", ["open", "close"])
async def test_what_an_episode_needs_may_fail_and_its_own_slips_are_named(method: str) -> None:
    for error, expected, message in (
        (EpisodeFailed("no server"), EpisodeFailed, "no server"),
        (KeyError("path"), PluginFault, rf"{method}\(\) raised KeyError"),
    ):

        async def fail(_: Any, error: Exception = error) -> None:
            raise error

        kind = type("Toy", (Opened,), {method: fail})
        episode: Any = environment_with(episode=returning(kind())).episode(SCENARIO)
        with pytest.raises(expected, match=message):
            await getattr(episode, method)()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"rubric": None}, "its attribute rubric is None; expected str"),
        ({"default_max_turns": "8"}, "its attribute default_max_turns is '8'; expected int"),
        ({"reward": None}, r"Toy has no method reward\(\)"),
    ],
)
def test_what_is_no_environment_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginFault, match=message):
        checked("toy", type("Toy", (Counting,), attributes)())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_package.plugin:build", "cannot be loaded from no_such_package.plugin:build: ModuleNotFoundError"),
        (
            "learnloop_service.environment.registry:nothing",
            "cannot be loaded from learnloop_service.environment.registry:nothing: AttributeError",
        ),
        ("builtins:len", "its builder builtins:len raised TypeError"),
    ],
)
def test_a_plug_in_that_cannot_be_built_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, message: str
) -> None:
    monkeypatch.setattr(plugins, "registered", lambda group: {"toy": EntryPoint("toy", value, group)})
    with pytest.raises(PluginFault, match=f"The environment 'toy'.*{message}"):
        build("toy", {}, tmp_path)
    with pytest.raises(PluginFault, match=f"The judge 'toy'.*{message}"):
        build_judge("toy", {}, JudgeServices())


def test_an_environment_can_say_why_an_outcome_is_not_a_success() -> None:
    assert why_no_success(checked("counting", Counting()), SCENARIO, {"why": "too few"}, 0.0) is None
    explaining = checked("explaining", Explaining())
    assert why_no_success(explaining, SCENARIO, {"why": " too\nfew "}, 0.0) == "too few"
    assert why_no_success(explaining, SCENARIO, {"why": None}, None) is None
    assert why_no_success(explaining, SCENARIO, {"why": "x" * 1000}, 0.0) == "x" * 299 + "…"
    with pytest.raises(PluginFault, match=r"why_no_success\(\) returned 7; expected a text or None"):
        why_no_success(explaining, SCENARIO, {"why": 7}, 0.0)
    with pytest.raises(PluginFault, match=r"why_no_success\(\) raised KeyError"):
        why_no_success(explaining, SCENARIO, {}, 0.0)
