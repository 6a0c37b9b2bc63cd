"""A learn loop that dies, or loses its engine, anywhere and often ends with the weights of an undisturbed one."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from learnloop_service.training.types import (
    PipelineConfig,
)
from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import LossyProxy, Moment
from tests.integration.training.mortal_runs import CHAT, CONFIG, JOBS, Stage, assert_alike

pytestmark = pytest.mark.long

AHEAD = replace(CONFIG, iterations=2, groups_per_iteration=1, pipeline=PipelineConfig(max_staleness=1))
"""The rollouts of an iteration are made while the one before trains and is evaluated."""


Calm = Callable[[str], Awaitable[Stage]]


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    return {}


@pytest.fixture
def calm(proxy: LossyProxy, stages: dict[str, Stage]) -> Calm:
    """The undisturbed run of an environment, which several tests compare theirs with."""

    async def stage(environment: str) -> Stage:
        if environment not in stages:
            stages[environment] = await Stage(proxy, environment).to_the_end()
        return stages[environment]

    return stage


class Deaths:
    """When a stage dies: once at each moment around the training of each iteration, else after a random while."""

    def __init__(self, calm: Stage, seed: int) -> None:
        named = ("train.intent", "train", "judge/train")
        moments = {f"{when} {name}" for when in ("before", "after") for name in named} | {f"reply {JOBS}"}
        self.left = Counter(event for event in calm.events if event in moments or event.startswith("yielded"))
        # The reply to a request whose sender is dead is lost: the first one gets its reply.
        self.left[f"reply {JOBS}"], self.left[f"request {JOBS}"] = 1, calm.events.count(f"request {JOBS}") - 1
        self._spared = {f"request {JOBS}": 1}
        self._random = Random(seed)
        self._life = self._random.randint(1, 15)

    def __call__(self, event: str) -> bool:
        self._life -= 1
        if self._spared.get(event):
            self._spared[event] -= 1
            return False
        if self.left[event] > 0:
            self.left[event] -= 1
        elif self._life > 0 or JOBS in event:
            return False
        self._life = self._random.randint(20, 120)
        return True


async def test_a_loop_that_dies_again_and_again_ends_with_the_same_weights(
    engine: EngineProcess, calm: Calm, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next test has an environment that learns."""
    undisturbed = await calm("email_search")
    monkeypatch.setattr(
        "learnloop_service.training.recorded_calls.KEEP_AFTER_S", 0.0
    )  # each call is kept, and given again
    stage = Stage(proxy, "email_search")
    stage.kill = deaths = Deaths(undisturbed, seed=17)
    await stage.to_the_end()
    assert not any(deaths.left.values()), f"it never died there: {deaths.left}"
    assert stage.lives > 8
    assert_alike(stage, undisturbed, engine)


async def test_rollouts_that_run_ahead_end_with_the_same_weights_after_deaths(
    engine: EngineProcess, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment learns, too, while rollouts run in it as it was an iteration before."""
    undisturbed = await Stage(proxy, "sales_email", AHEAD).to_the_end()
    assert [result.staleness for result in undisturbed.results] == [None, 0, 1]
    monkeypatch.setattr("learnloop_service.training.recorded_calls.KEEP_AFTER_S", 0.0)
    stage = Stage(proxy, "sales_email", AHEAD)
    stage.kill = deaths = Deaths(undisturbed, seed=23)
    await stage.to_the_end()
    assert not any(deaths.left.values()), f"it never died there: {deaths.left}"
    assert stage.died_ahead > 0
    assert_alike(stage, undisturbed, engine)


async def test_an_engine_that_is_away_for_too_long_is_no_try_that_failed(
    engine: EngineProcess, calm: Calm, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop gives up, and what it keeps holds no failure: the next one makes those tries."""
    monkeypatch.setattr("learnloop_service.training.rollout.rollout._RESTARTS", 0)
    undisturbed = await calm("email_search")
    stage, requests = Stage(proxy, "email_search"), count(1)

    async def loses(moment: Moment, request: str) -> bool:
        return moment == "request" and request == CHAT and next(requests) in (2, 6, 20)

    stage.loses = loses  # type: ignore[method-assign]
    await stage.to_the_end()
    assert stage.lives > 2
    assert all(result.failed_rollouts == 0 for result in stage.results)
    assert_alike(stage, undisturbed, engine)


async def test_an_engine_that_is_killed_in_mid_rollout_and_in_mid_training(
    engine: EngineProcess, calm: Calm, proxy: LossyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learnloop_service.training.rollout.rollout._RESTARTS", 1000)
    monkeypatch.setattr("learnloop_service.training.rollout.rollout._LONGEST_PAUSE_S", 0.3)
    undisturbed = await calm("email_search")
    running = EngineProcess(tmp_path, "--slots", "16").__enter__()
    proxy.target = running.base_url
    stage = Stage(proxy, "email_search")
    # Of the second turns, one in the baseline and one of the iteration.
    kills = {f"request {CHAT}": [5, _asked_before(undisturbed, "yielded 0") + 9]}
    kills[f"reply {JOBS}"] = [1]
    counts: Counter[str] = Counter()

    async def loses(moment: Moment, request: str) -> bool:
        nonlocal running
        counts[event := f"{moment} {request}"] += 1
        if counts[event] not in kills.get(event, []):
            return False
        kills[event].remove(counts[event])
        running.stop(signal.SIGKILL)
        running = await asyncio.to_thread(EngineProcess(tmp_path, "--slots", "16").__enter__)
        proxy.target = running.base_url
        return True

    stage.loses = loses  # type: ignore[method-assign]
    try:
        await stage.to_the_end()
        assert not any(kills.values()), f"it was never killed there: {kills}"
        assert all(result.failed_rollouts == 0 for result in stage.results)
        assert_alike(stage, undisturbed, running, engine)
    finally:
        running.stop()


def _asked_before(stage: Stage, event: str) -> int:
    """How many replies were asked for before that event."""
    return stage.events[: stage.events.index(event)].count(f"request {CHAT}")
