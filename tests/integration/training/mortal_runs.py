"""Runs of the learn loop on a real engine that can die anywhere, and live again."""

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

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
from learnloop_service.training.types import EvaluationConfig, IterationProgress, IterationResult, Resume, RunConfig
from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import LossyProxy, Moment, nothing
from tests.integration.training.scripted_runs import resume_after as continued_after

CONFIG = RunConfig(
    iterations=1,
    groups_per_iteration=2,
    rollouts_per_group=3,
    max_turns=3,
    max_completion_tokens=60,
    seed=3,
    evaluation=EvaluationConfig(every=1, scenarios=1, samples=1, test_scenarios=1),
)
MAKERS: dict[str, Callable[[], tuple[Environment, Judge]]] = {
    "email_search": lambda: (SyntheticEmailSearch(), ReferenceJudge()),
    "sales_email": lambda: (SalesEmail(), judges.build("grounding", {}, JudgeServices())),
}
CHAT = "POST /v1/chat/completions"
JOBS = "POST /v1/preview/training-jobs"
GROUPED = 3
"""Number of rollouts that are written together."""
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
    """A run of a learn loop over several lives. `happens` gets every event, and `kill` decides when it dies."""

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
        """The proxy calls this: requests are events too. Nothing is lost but by the death of the sender."""
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
        checkpoints = engine.data_dir / "models" / self.model.project / self.model.name / "checkpoints"
        return {path.name: _sha256(path / "model.safetensors") for path in sorted(checkpoints.iterdir())}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def resume_after(results: list[IterationResult]) -> Resume | None:
    """Where to continue after the iterations that were saved."""
    if not results:
        return None
    resume = continued_after(results)
    return replace(resume, rolled_out=list(rolled_out(facts_of(result, CONFIG, {}) for result in results)))


def figures(result: IterationResult) -> list[Any]:
    """All that the seed decides."""
    groups = [
        [(scored.reward, scored.advantage, scored.rollout.outcome) for scored in g.rollouts] for g in result.groups
    ]
    evaluations = [[(scored.reward, scored.rollout.outcome) for scored in e.rollouts] for e in result.evaluations]
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
        rollouts = [scored.rollout for group in result.groups for scored in group.rollouts]
        rollouts += [scored.rollout for evaluation in result.evaluations for scored in evaluation.rollouts]
        entries = stage.book.saved[result.iteration].items()
        ids = {json.loads(value)["id"] for name, value in entries if name.startswith("rollout/")}
        assert {rollout.id for rollout in rollouts} <= ids, "a rollout that was kept was made again"
