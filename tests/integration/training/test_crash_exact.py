"""A learn loop that dies, or loses its engine, anywhere and often ends with the weights of an undisturbed one."""

import asyncio
import hashlib
import json
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from learnloop_sales.environment import SalesEmail
from learnloop_service.environment.base import Environment
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges import registry as judges
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import BackendUnavailable, ModelSpec
from learnloop_service.training.backends.embedded import connect
from learnloop_service.training.diagnosis.collapses import rolled_out
from learnloop_service.training.diagnosis.collect import facts_of
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import (
    EvaluationConfig,
    IterationProgress,
    IterationResult,
    PipelineConfig,
    Resume,
    RunConfig,
)
from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import LossyProxy, Moment, nothing
from tests.integration.training.test_work_in_flight import resume_after as continued_after

pytestmark = pytest.mark.long

CONFIG = RunConfig(
    iterations=1,
    groups_per_iteration=2,
    rollouts_per_group=3,
    max_turns=3,
    max_completion_tokens=60,
    seed=3,
    evaluation=EvaluationConfig(every=1, scenarios=1, samples=1, test_scenarios=1),
)
AHEAD = replace(CONFIG, iterations=2, groups_per_iteration=1, pipeline=PipelineConfig(max_staleness=1))
"""The rollouts of an iteration are made while the one before trains and is evaluated."""
MAKERS: dict[str, Callable[[], tuple[Environment, Judge]]] = {
    "email_search": lambda: (SyntheticEmailSearch(), ReferenceJudge()),
    "sales_email": lambda: (SalesEmail(), judges.build("grounding", {}, JudgeServices())),
}
CHAT = "POST /v1/chat/completions"
JOBS = "POST /v1/preview/training-jobs"
GROUPED = 3
"""So many rollouts are written together."""
_names = count()


class Book:
    """A journal that outlives the loops. Entries that wait to be written are lost with the loop that made them."""

    def __init__(self, happens: Callable[[str], None]) -> None:
        self.saved: dict[int, dict[str, str]] = defaultdict(dict)
        self._waiting: list[tuple[int, str, str]] = []
        self._happens = happens
        self.dead = False
        """Whether its writer has died: what its tasks do until they have ended is not written."""

    def crash(self) -> None:
        self._waiting.clear()
        self.dead = False

    async def kept(self, iteration: int) -> Mapping[str, str]:
        return dict(self.saved[iteration])

    async def keep(self, iteration: int, name: str, value: str) -> None:
        self._happens(f"before {name}")
        await asyncio.sleep(0)  # where a cancelled loop ends
        self._waiting.append((iteration, name, value))
        self.flush()
        self._happens(f"after {name}")
        await asyncio.sleep(0)

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        self._waiting.append((iteration, name, value))
        if len(self._waiting) >= GROUPED:
            self.flush()
        self._happens(f"made {name}")

    def flush(self) -> None:
        for iteration, name, value in () if self.dead else self._waiting:
            assert name == "train.intent" or name not in self.saved[iteration], f"{name} was made twice"
            self.saved[iteration][name] = value
        self._waiting.clear()


class Stage:
    """A run of a learn loop over several lives. `happens` is told everything, and `kill` decides when it dies."""

    def __init__(self, proxy: LossyProxy, environment: str, config: RunConfig = CONFIG) -> None:
        self.model = ModelSpec("exact", f"agent-{next(_names)}", "learnloop/tiny")
        self.results: list[IterationResult] = []
        self.book = Book(self.happens)
        self.events: list[str] = []
        self.lives = 0
        self.died_ahead = 0
        """How often it died when the journal had entries of a later iteration."""
        self.kill: Callable[[str], bool] = lambda event: False
        self._proxy = proxy
        self._make = MAKERS[environment]
        self._config = config
        self._life: asyncio.Task[None] | None = None

    def happens(self, event: str) -> None:
        self.events.append(event)
        if self._life is not None and not (self._life.done() or self.book.dead) and self.kill(event):
            self.book.dead = True
            self._life.cancel()

    async def loses(self, moment: Moment, request: str) -> bool:
        """For the proxy: requests are events too; nothing is lost but by the death of who asked."""
        self.happens(f"{moment} {request}")
        return False

    async def to_the_end(self) -> "Stage":
        """Live until the loop has ended of itself."""
        self._proxy.loses = self.loses
        while True:
            self.lives += 1
            self._life = asyncio.create_task(self._live())
            await asyncio.wait((self._life,))
            if not self._life.cancelled():
                try:
                    self._life.result()
                except BackendUnavailable:
                    self.book.crash()
                    await asyncio.sleep(0.05)
                    continue
                self._proxy.loses = nothing
                return self
            self.book.crash()
            self.died_ahead += any(entries and n > len(self.results) for n, entries in self.book.saved.items())

    async def _live(self) -> None:
        environment, judge = self._make()
        backend = await connect(self._proxy.url, "none")
        try:
            loop = learn_loop(
                self._config,
                environment,
                judge,
                await backend.register(self.model),
                progress=self._progress,
                journal=self.book,
                resume=resume_after(self.results),
                another_environment=lambda: self._make()[0],
            )
            async with aclosing(loop):
                async for result in loop:
                    self.happens(f"yielded {result.iteration}")
                    await asyncio.sleep(0)
                    self.book.flush()  # before an iteration is saved, as whoever drives a run does
                    self.results.append(result)
        finally:
            environment.close()
            await backend.close()

    def _progress(self, progress: IterationProgress) -> None:
        self.happens(f"{progress.phase} {progress.done}")

    def weights(self, engine: EngineProcess) -> dict[str, str]:
        """The hash of each checkpoint's weights, by step."""
        place = engine.data_dir / "models" / self.model.project / self.model.name / "checkpoints"
        return {path.name: _sha256(path / "model.safetensors") for path in sorted(place.iterdir())}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def resume_after(results: list[IterationResult]) -> Resume | None:
    """Where to go on after the iterations that were saved."""
    if not results:
        return None
    resume = continued_after(results)
    return replace(resume, rolled_out=list(rolled_out(facts_of(result, CONFIG, {}) for result in results)))


def figures(result: IterationResult) -> list[Any]:
    """All that the seed decides."""
    groups = [[(each.reward, each.advantage, each.rollout.outcome) for each in g.rollouts] for g in result.groups]
    evaluations = [[(each.reward, each.rollout.outcome) for each in e.rollouts] for e in result.evaluations]
    reflection = result.reflection and (result.reflection.state, result.reflection.showcase.rollout.outcome)
    metrics = {name: value for name, value in result.train_metrics.items() if name != "seconds"}
    steps = [result.step, result.best_step, result.sampled_step, result.staleness]
    return [result.iteration, steps, groups, evaluations, reflection, metrics]


def assert_alike(stage: Stage, calm: Stage, engine: EngineProcess, other: EngineProcess | None = None) -> None:
    assert list(map(figures, stage.results)) == list(map(figures, calm.results))
    expected = calm.weights(other or engine)
    assert stage.weights(engine) == expected
    trained = [result for result in calm.results if result.train_metrics]
    assert len(set(expected.values())) == len(expected) == 1 + len(trained) > 1, "nothing was trained"
    for result in stage.results:
        rollouts = [each.rollout for group in result.groups for each in group.rollouts]
        rollouts += [each.rollout for evaluation in result.evaluations for each in evaluation.rollouts]
        kept = stage.book.saved[result.iteration].items()
        ids = {json.loads(value)["id"] for name, value in kept if name.startswith("rollout/")}
        assert {rollout.id for rollout in rollouts} <= ids, "a rollout that was kept was made again"


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
        self.left = Counter(each for each in calm.events if each in moments or each.startswith("yielded"))
        # The reply to a request whose sender is dead comes to nobody: the first one gets its reply.
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


async def test_a_loop_whose_rollouts_run_ahead_dies_again_and_again_and_ends_with_the_same_weights(
    engine: EngineProcess, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an environment that learns, too: it goes on while rollouts are made in it as it was an iteration before."""
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
    stage, asked = Stage(proxy, "email_search"), count(1)

    async def loses(moment: Moment, request: str) -> bool:
        return moment == "request" and request == CHAT and next(asked) in (2, 6, 20)

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
    wanted = {f"request {CHAT}": [5, _asked_before(undisturbed, "yielded 0") + 9]}
    wanted[f"reply {JOBS}"] = [1]
    seen: Counter[str] = Counter()

    async def loses(moment: Moment, request: str) -> bool:
        nonlocal running
        seen[event := f"{moment} {request}"] += 1
        if seen[event] not in wanted.get(event, []):
            return False
        wanted[event].remove(seen[event])
        running.stop(signal.SIGKILL)
        running = await asyncio.to_thread(EngineProcess(tmp_path, "--slots", "16").__enter__)
        proxy.target = running.base_url
        return True

    stage.loses = loses  # type: ignore[method-assign]
    try:
        await stage.to_the_end()
        assert not any(wanted.values()), f"it was never killed there: {wanted}"
        assert all(result.failed_rollouts == 0 for result in stage.results)
        assert_alike(stage, undisturbed, running, engine)
    finally:
        running.stop()


def _asked_before(stage: Stage, event: str) -> int:
    """How many replies were asked for before that event."""
    return stage.events[: stage.events.index(event)].count(f"request {CHAT}")
