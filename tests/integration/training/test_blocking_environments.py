"""Environments that wait without giving way: each costs its own rollouts only."""

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from learnloop_service.environment.base import Ending, Environment, Json, Outcome, Scenario, ToolError, ToolResult
from learnloop_service.environment.contract import checked, is_ours
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.training.rollout import environment_calls
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.environment_calls import off_loop, watched
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.types import FailureKind, Rollout
from tests.conditions import until
from tests.fakes.scripted_chat import Reply, ScriptedChat, call, scripted_chat

METHODS = ("episode", "messages", "reply", "end", "outcome")


class Blocking:
    """An environment of a stranger. A scenario names the method that waits, in its own episodes, for `released`."""

    name, default_max_turns, default_judge, rubric = "blocking", 2, "reported", "short"

    def __init__(self) -> None:
        self.released = threading.Event()
        self.blocked = 0

    def waits_in(self, method: str, scenario: Scenario) -> None:
        if scenario.task["blocks"] == method:
            self.blocked += 1
            self.released.wait()

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> "BlockingEpisode":
        self.waits_in("episode", scenario)
        return BlockingEpisode(self, scenario)


class BlockingEpisode:
    tools, max_turns = (), 2

    def __init__(self, environment: Blocking, scenario: Scenario) -> None:
        self.environment, self.scenario = environment, scenario
        self.finish: str | None = None

    def messages(self) -> list[dict[str, Json]]:
        self.environment.waits_in("messages", self.scenario)
        return [{"role": "user", "content": "Say a word."}]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        if self.scenario.task["blocks"] == "call":
            time.sleep(2 * environment_calls.MOST_HELD_S)  # noqa: ASYNC251 - the fault itself
        await asyncio.sleep(0)
        if self.scenario.task["blocks"] == "error":
            raise ToolError("there is no such tool")
        self.finish = "called"
        return ToolResult("", final=True)

    def reply(self, text: str) -> ToolResult:
        self.environment.waits_in("reply", self.scenario)
        self.finish = "answered"
        return ToolResult("", final=self.scenario.task["blocks"] != "end")

    def end(self, reason: Ending, detail: str) -> None:
        self.environment.waits_in("end", self.scenario)
        self.finish = reason

    def outcome(self) -> Outcome:
        self.environment.waits_in("outcome", self.scenario)
        return {"finish": self.finish, "thread": threading.get_ident()}


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    environment = Blocking()
    yield environment
    environment.released.set()


async def say(request: Any) -> Reply:
    return Reply(content="word")


async def roll(blocking: Blocking, model: ScriptedChat, blocks: str = "", timeout_s: float = 60.0) -> Rollout:
    async with open_chat(model.endpoint()) as chat:
        scenario = Scenario(blocks or "free", "train", {"blocks": blocks})
        limits = RolloutLimits(timeout_s=timeout_s)
        return await rollout(cast(Environment, blocking), scenario, chat, limits, id=blocks, seed=1)


def _line(method: Any, text: str) -> str:
    """FILE:LINE of the method's line with this text."""
    lines, first = inspect.getsourcelines(method)
    [offset] = [number for number, line in enumerate(lines) if text in line]
    return f"{inspect.getsourcefile(method)}:{first + offset}"


@pytest.mark.parametrize("method", METHODS)
async def test_a_method_that_does_not_return_fails_its_own_rollout_only(method: str, blocking: Blocking) -> None:
    async with asyncio.timeout(60), scripted_chat(say) as model:
        await roll(blocking, model)  # imports
        slow = asyncio.ensure_future(roll(blocking, model, method, timeout_s=1.0))
        await until(lambda: blocking.blocked)
        others = await asyncio.gather(*(roll(blocking, model) for _ in range(3)))
        assert not blocking.released.is_set()
        failed = await slow
    assert [other.failure for other in others] == [None] * 3
    assert {other.outcome["finish"] for other in others} == {"answered"}
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.TIMEOUT
    owner = Blocking if method == "episode" else BlockingEpisode
    assert f"{method}() of the environment at {_line(getattr(owner, method), 'waits_in')}" in failed.failure.message


@pytest.mark.parametrize("method", METHODS)
async def test_a_rollout_that_is_blocked_can_be_cancelled(method: str, blocking: Blocking) -> None:
    async with asyncio.timeout(60), scripted_chat(say) as model:
        work = asyncio.ensure_future(roll(blocking, model, method))
        await until(lambda: blocking.blocked)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert not blocking.released.is_set()


async def test_threads_that_never_return_count_against_the_bound(
    blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_calls, "MOST_THREADS", 2)
    async with asyncio.timeout(60), scripted_chat(say) as model:
        stuck = await asyncio.gather(*(roll(blocking, model, "reply", timeout_s=1.0) for _ in range(2)))
        waiting = await roll(blocking, model, timeout_s=0.5)
        blocking.released.set()
        await until(lambda: not environment_calls._here().threads)
        freed = await roll(blocking, model)
    assert "2 of 2 threads are occupied" in "".join(played.failure.message for played in stuck if played.failure)
    assert waiting.failure is not None
    assert "all 2 threads for environments are occupied, the longest by reply()" in waiting.failure.message
    assert freed.failure is None


async def test_an_asynchronous_call_that_holds_the_loop_is_named_and_fails_alone(
    blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have less time than it holds the loop for; that time does not count."""

    async def calls(request: Any) -> Reply:
        return call("tool")

    monkeypatch.setattr(environment_calls, "MOST_HELD_S", 1.0)
    async with asyncio.timeout(60), scripted_chat(calls) as tools, scripted_chat(say) as words:
        await roll(blocking, words)  # imports
        limited = [asyncio.ensure_future(roll(blocking, words, "reply", timeout_s=1.9)) for _ in range(2)]
        await until(lambda: blocking.blocked == 2)
        holding = await roll(blocking, tools, "call")
        blocking.released.set()
        others = await asyncio.gather(*limited)
    assert holding.failure is not None
    assert holding.failure.kind is FailureKind.ENVIRONMENT
    assert (
        f"call() of the environment at {_line(BlockingEpisode.call, 'time.sleep')} held the" in holding.failure.message
    )
    assert [other.failure for other in others] == [None, None]


@pytest.mark.parametrize(("blocks", "finish"), [("", "called"), ("error", "malformed")])
async def test_an_asynchronous_call_that_gives_way_works_as_ever(blocks: str, finish: str, blocking: Blocking) -> None:
    async def calls(request: Any) -> Reply:
        return call("tool")

    async with scripted_chat(calls) as model:
        played = await roll(blocking, model, blocks)
    assert played.failure is None
    assert played.outcome["finish"] == finish
    assert played.outcome["thread"] != threading.get_ident()


async def test_environments_of_this_service_run_on_the_event_loop() -> None:
    for environment in (SyntheticEmailSearch(), checked("ours", SyntheticEmailSearch())):
        [scenario] = environment.scenarios("train", 1, seed=0)
        assert is_ours(environment)
        assert is_ours(environment.episode(scenario))
    assert await off_loop(environment, threading.get_ident) == threading.get_ident()
    assert not is_ours(Blocking())
    assert await off_loop(Blocking(), threading.get_ident) != threading.get_ident()


async def test_what_a_call_raises_comes_through() -> None:
    def stops() -> None:
        raise StopIteration("early")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(RuntimeError, match="early"):
        await off_loop(Blocking(), stops)
    with pytest.raises(KeyError):
        await watched(Blocking(), fails)
    forever = asyncio.ensure_future(watched(Blocking(), asyncio.Event().wait))
    await asyncio.sleep(0)
    forever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forever
