"""Runs of the learn loop with a scripted model: only sampling and training are not real."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from learnloop_service.environment.base import Environment, Json, Scenario, Split
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.email_search.synthetic import make_world, parse_address
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import ModelSpec, TrainRequest
from learnloop_service.training.inclusion import taught_nothing
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import (
    EvaluationConfig,
    IterationResult,
    PipelineConfig,
    Resume,
    RunConfig,
    Snapshot,
)
from tests.best_of import best_of
from tests.conditions import until
from tests.fakes.scripted_chat import Reply, ScriptedChat, call
from tests.fakes.scripted_learning import ScriptedPolicy

CONFIG = RunConfig(
    iterations=4,
    groups_per_iteration=3,
    rollouts_per_group=4,
    learning_rate=1e-3,
    warmup_iterations=3,
    concurrency=5,
    seed=11,
    evaluation=EvaluationConfig(every=2, scenarios=4, samples=2, test_scenarios=3),
)
Skill = Callable[[int, str, float], bool]
"""Whether the model of a step answers that inbox's question right; the number in [0, 1) is the luck of the seed."""


class Few(SyntheticEmailSearch):
    """Has a fixed number of training scenarios, which it repeats."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        if split != "train":
            return super().scenarios(split, count, seed, start)
        pool = super().scenarios(split, self._size, seed)
        return [pool[(start + number) % self._size] for number in range(count)]


class Trained(ScriptedPolicy):
    """Notes what it is trained on."""

    def __init__(self, url: str) -> None:
        super().__init__(ModelSpec("p", "m", "tiny"), url)
        self.jobs: list[tuple[int, list[int], float]] = []
        self.error: Exception | None = None

    async def submit(self, request: TrainRequest) -> str:
        if self.error is not None:
            raise self.error
        assert all(len({trajectory.reward for trajectory in group.trajectories}) > 1 for group in request.groups)
        sizes = [len(group.trajectories) for group in request.groups]
        self.jobs.append((request.expected_step, sizes, request.learning_rate))
        return await super().submit(request)


def address_of(request: Mapping[str, Json]) -> str:
    """The inbox that a request is about."""
    match = re.search(r"the inbox of (\S+)\. Today", request["messages"][0]["content"])
    assert match
    return match[1]


def skilled(skill: Skill) -> Callable[[Mapping[str, Json]], Any]:
    """A model that answers without a delay."""

    async def script(request: Mapping[str, Json]) -> Reply:
        step = int(request["model"].rpartition("@")[2])
        key = parse_address(address_of(request))
        assert key
        world = make_world(*key)
        right = skill(step, world.address, request["seed"] / 2**53)
        return call("return_final_answer", answer=world.answer if right else "no idea", sources=[world.source_id])

    return script


async def run(
    model: ScriptedChat, config: RunConfig = CONFIG, environment: Environment | None = None, **options: Any
) -> list[IterationResult]:
    policy = options.pop("policy", None) or Trained(model.url)
    results = learn_loop(config, environment or SyntheticEmailSearch(), ReferenceJudge(), policy, **options)
    async with aclosing(results):
        return [result async for result in results]


@asynccontextmanager
async def left_as_it_was() -> AsyncIterator[None]:
    """No task is left that was not there before."""
    before = asyncio.all_tasks()
    yield
    await until(lambda: not asyncio.all_tasks() - before)


def figures(result: IterationResult) -> list[Any]:
    """What must not depend on chance: rewards and what was evaluated."""
    return [
        [[(scored.reward, scored.advantage) for scored in group.rollouts] for group in result.groups],
        [[scored.reward for scored in evaluation.rollouts] for evaluation in result.evaluations],
        (result.step, result.best_step, result.success, result.rewards),
    ]


def lucky(step: int, address: str, luck: float) -> bool:
    """Half of the tries are right, and more with each step."""
    return luck < 0.5 + 0.1 * step


def ahead(staleness: int, config: RunConfig = CONFIG) -> RunConfig:
    return replace(config, pipeline=PipelineConfig(staleness))


def iterations_of(config: RunConfig) -> dict[str, int]:
    """Which iteration trains on each inbox."""
    environment, iteration_of = SyntheticEmailSearch(), dict[str, int]()
    for iteration in range(1, config.iterations + 1):
        start = (iteration - 1) * config.groups_per_iteration
        for scenario in environment.scenarios("train", config.groups_per_iteration, config.seed, start):
            iteration_of[scenario.task["inbox_address"]] = iteration
    return iteration_of


class MemoryJournal:
    """A journal in memory."""

    def __init__(self) -> None:
        self.saved: dict[int, dict[str, str]] = defaultdict(dict)
        self.waited: list[str] = []
        """The entries of iteration 1 that the loop waited for."""

    async def kept(self, iteration: int) -> Mapping[str, str]:
        return dict(self.saved[iteration])

    async def keep(self, iteration: int, name: str, value: str) -> None:
        if iteration == 1:
            self.waited.append(name)
        self.keep_soon(iteration, name, value)

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        self.saved[iteration][name] = value


def resume_after(results: list[IterationResult]) -> Resume:
    """Where a run continues that has saved these results."""
    snapshots = {result.iteration: snapshot_after(result) for result in results}
    last = results[-1].iteration
    return Resume(last + 1, snapshots.pop(last), best_of(results), snapshots)


def snapshot_after(result: IterationResult) -> Snapshot:
    """What the rollouts that begin after an iteration depend on, as a database gives it back."""
    state = json.loads(json.dumps(result.reflection.state)) if result.reflection else None
    return Snapshot(result.step, state, taught_nothing(result.groups))


def teaches(address: str) -> bool:
    """Whether the rollouts of an inbox differ: two thirds of them."""
    return sum(address.encode()) % 3 > 0


def mixed(step: int, address: str, luck: float) -> bool:
    return luck < 0.5 if teaches(address) else True
