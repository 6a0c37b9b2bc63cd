"""Rollouts of real environments of the package `verifiers`, which CI does not install: it brings many others."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.runs.configuration import make_player
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.base import Environment, Scenario
from learnloop_service.environment.registry import build
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.types import Rollout
from tests.fakes.scripted_chat import Reply, Script, call, scripted_chat

vf = pytest.importorskip("verifiers")
MODULE = "an_environment_of_a_test"
ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(10)]


def load_environment() -> Any:
    from datasets import Dataset

    def double(n: int) -> int:
        """Twice the number.

        Args:
            n: The number.
        """
        return 2 * n

    def right(completion: Any, answer: str, **_: Any) -> float:
        return float(completion[-1]["content"] == answer)

    def brief(completion: Any, **_: Any) -> float:
        return float(len(completion) == 1)

    rubric = vf.Rubric(funcs=[right, brief], weights=[1.0, 0.5])
    return vf.ToolEnv(dataset=Dataset.from_list(ROWS), tools=[double], rubric=rubric, max_turns=3)


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = ModuleType(MODULE)
    fake.load_environment = load_environment
    monkeypatch.setitem(sys.modules, MODULE, fake)


def choice(**config: Any) -> Choice:
    return Choice(name="verifiers", config={"env": MODULE, **config})


async def built(chosen: Choice) -> Environment:
    access = EnvironmentAccess(load_settings(environment_modules=(MODULE,)))
    return await asyncio.to_thread(build, chosen.name, chosen.config, Path("unused"), access)  # as the service does


async def roll(chosen: Choice, environment: Environment, scenario: Scenario, script: Script) -> Rollout:
    async with scripted_chat(script) as model, open_chat(model.endpoint()) as chat:
        agent = make_player(None, chosen, ())
        return await rollout(
            environment, scenario, chat, id=scenario.id, seed=1, limits=RolloutLimits(timeout_s=60), agent=agent
        )


async def script(request: Mapping[str, Any]) -> Reply:
    """Call the tool, then say what it gave."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return Reply(content=last["content"])
    return call("double", n=int(last["content"].split()[2]))


async def test_its_loop_its_tools_and_its_rubric() -> None:
    before = signal.getsignal(signal.SIGTERM)
    environment = await built(choice())
    assert signal.getsignal(signal.SIGTERM) is before
    splits = {
        split: {scenario.id for scenario in environment.scenarios(split, 20, 0)}
        for split in ("train", "validation", "test")
    }
    assert sorted(map(len, splits.values())) == [2, 2, 6]
    scenarios = environment.scenarios("train", 4, seed=0)
    assert all("answer" not in scenario.task for scenario in scenarios)
    played = await asyncio.gather(*(roll(choice(), environment, scenario, script) for scenario in scenarios))
    for played_rollout in played:
        assert played_rollout.error is None
        assert [message["role"] for message in messages_of(played_rollout.trajectory)] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert played_rollout.trajectory.tools
        assert environment.reward(played_rollout.outcome, 1.0) == {"right": 1.0, "brief": 0.0}
        assert environment.success(played_rollout.outcome, 1.0)


async def test_what_ends_without_a_score_has_failed() -> None:
    environment = await built(choice())
    (scenario,) = environment.scenarios("train", 1, seed=0)

    async def refuse(request: Mapping[str, Any]) -> Reply:
        return Reply(status=500)

    away = await roll(choice(), environment, scenario, refuse)
    assert away.failure is not None
    assert away.outcome["reported_reward"] is None


async def test_what_cannot_be_loaded_says_why() -> None:
    with pytest.raises(ValueError, match=f"{MODULE} cannot be loaded: .*unexpected keyword argument 'colour'"):
        await built(choice(args={"colour": "red"}))
