"""The front of several workers, with scripted workers that die at the worst moments."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from learnloop_service.training.engine.computing import BusySeconds, EngineStopped, PolicyStep, WorkerLost
from learnloop_service.training.engine.engine import TrainResult
from learnloop_service.training.engine.registry.model_record import NewModel
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.peers import TrainerLost, WeightsDiffer
from learnloop_service.training.engine.workers import pool as pool_module
from learnloop_service.training.engine.workers.conversations import Conversations
from learnloop_service.training.engine.workers.link import (
    Ask,
    CommandAnswer,
    Failed,
    FrontEnd,
    LinkClosed,
    StreamedTokens,
    ToWorker,
    Trained,
    TrainingCommand,
    WorkerFigures,
    WorkerReport,
    WorkerSpec,
)
from tests.conditions import until
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.worker_pool import Following, Pool, worker_pool

FIGURES = WorkerFigures(SamplingFigures(*[0] * len(SamplingFigures.__slots__)), BusySeconds(), (), None)
Does = Callable[["ScriptedWorker", Ask], None]


class ScriptedWorker:
    """A link to a worker whose answers come from a function."""

    location, host = "nowhere", None

    def __init__(self, spec: WorkerSpec, does: Does) -> None:
        self.spec = spec
        self._does = does
        self._reports: queue.SimpleQueue[WorkerReport | None] = queue.SimpleQueue()
        self._reports.put(WorkerReport((), FIGURES))

    def answer(self, ask: Ask, outcome: object) -> None:
        self._reports.put(WorkerReport((CommandAnswer(ask.number, outcome),), FIGURES))

    def tell(self, tokens: StreamedTokens) -> None:
        self._reports.put(WorkerReport((tokens,), FIGURES))

    def receive(self) -> WorkerReport:
        if (report := self._reports.get()) is None:
            raise LinkClosed("ended")
        return report

    def send(self, message: ToWorker) -> None:
        if isinstance(message, Ask):
            self._does(self, message)

    def end(self) -> None:
        self._reports.put(None)


class ScriptedPlacement:
    """Starts scripted workers; `started` counts them."""

    def __init__(self, does: Does) -> None:
        self.started = 0
        self._does = does

    def start(self, spec: WorkerSpec) -> FrontEnd:
        self.started += 1
        return ScriptedWorker(spec, self._does)

    def rendezvous(self, trainers: Sequence[FrontEnd]) -> str:
        return "file:///nowhere"

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started again without a delay."""
    monkeypatch.setattr("learnloop_service.training.engine.workers.handle._FIRST_DELAY_S", 0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "tiny")


async def step(pool: Pool) -> PolicyStep:
    model = await pool.create_model(NewModel("test", "agent", "tiny"))
    return PolicyStep(model.id, [], TrainOptions())


def steps_of(pool: Pool) -> list[int]:
    return [checkpoint.step for checkpoint in pool.registry.steps(pool.registry.models()[0].id)]


async def test_a_step_that_was_written_before_the_trainer_died_is_done(tmp_path: Path, base: Path) -> None:
    def writes_and_dies(worker: ScriptedWorker, ask: Ask) -> None:
        assert isinstance(ask.what, TrainingCommand)
        theirs = Registry(worker.spec.data_dir, worker.spec.base_models, follows=True)
        model = ask.what.model
        theirs.learn(model.record, model.newest)
        theirs.commit(model.record.id, model.newest, {"loss": 0.5}, lambda directory: (directory / "weights").touch())
        worker.end()

    placement = ScriptedPlacement(writes_and_dies)
    async with worker_pool(tmp_path, base, [(True, True)], placement) as pool:
        assert await pool.trained(await step(pool)) == TrainResult(1, True, {"loss": 0.5})
        assert steps_of(pool) == [0, 1]
        assert pool.train_steps == 1


async def test_a_step_that_kills_its_trainers_is_given_up(tmp_path: Path, base: Path) -> None:
    placement = ScriptedPlacement(lambda worker, _: worker.end())
    async with worker_pool(tmp_path, base, [(True, True)] * 2, placement) as pool:
        outcome = await Following(pool, await step(pool)).end
        assert isinstance(outcome, TrainerLost)
        assert steps_of(pool) == [0]


async def test_the_error_is_that_of_the_trainer_that_failed_first(tmp_path: Path, base: Path) -> None:
    def differs(worker: ScriptedWorker, ask: Ask) -> None:
        # The other trainer waits for this one until its wait is ended.
        outcome = TrainerLost("abandoned") if worker.spec.number == 0 else WeightsDiffer("theirs")
        worker.answer(ask, Failed.of(outcome))

    async with worker_pool(tmp_path, base, [(True, True)] * 2, ScriptedPlacement(differs)) as pool:
        assert isinstance(await Following(pool, await step(pool)).end, WeightsDiffer)


async def test_a_trainer_that_freezes_at_the_meeting_point_freezes_nothing_else(tmp_path: Path, base: Path) -> None:
    class Frozen(ScriptedPlacement):
        """Does not answer with its first meeting point before the first trainer has been ended."""

        def __init__(self) -> None:
            super().__init__(lambda worker, ask: worker.answer(ask, Trained(TrainResult(1, True, {}), None)))
            self.asked, self.thawed = threading.Event(), threading.Event()

        def rendezvous(self, trainers: Sequence[FrontEnd]) -> str:
            if not self.asked.is_set():
                self.asked.set()
                assert self.thawed.wait(30)
                trainers[0].end()
                raise LinkClosed("it has been ended")
            return super().rendezvous(trainers)

    placement = Frozen()
    async with worker_pool(tmp_path, base, [(True, True)] * 2, placement) as pool:
        training = Following(pool, await step(pool))
        await until(placement.asked.is_set)
        placement.thawed.set()
        assert await training.end == TrainResult(1, True, {})
        assert placement.started == 3


async def test_a_trainer_that_does_not_leave_a_step_is_ended(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "ABANDON_S", 0.0)

    def hangs(worker: ScriptedWorker, ask: Ask) -> None:
        if worker.spec.number == 1:
            worker.answer(ask, Failed.of(WeightsDiffer("theirs")))

    placement = ScriptedPlacement(hangs)
    async with worker_pool(tmp_path, base, [(True, True)] * 2, placement) as pool:
        assert isinstance(await Following(pool, await step(pool)).end, WeightsDiffer)
        await until(lambda: placement.started == 3)


async def test_a_sample_that_kills_its_workers_is_given_up(tmp_path: Path, base: Path) -> None:
    placement = ScriptedPlacement(lambda worker, _: worker.end())
    async with worker_pool(tmp_path, base, [(True, True)], placement) as pool:
        with pytest.raises(WorkerLost, match="3 workers ended"):
            await pool.sample(pool.registry.resolve("tiny"), SampleRequest((1, 2), "tiny", 4))


@pytest.mark.parametrize(("device", "begun"), [("cpu", 3), ("cuda", 1)])
async def test_tokens_that_were_reported_are_not_reported_otherwise(
    tmp_path: Path, base: Path, device: str, begun: int
) -> None:
    """A worker dies after its first token. Where the same seed may give another reply, none is begun."""
    requests: list[Ask] = []

    def does(worker: ScriptedWorker, ask: Ask) -> None:
        requests.append(ask)
        worker.tell(StreamedTokens(ask.number, ((7, -0.5),)))
        worker.end()

    reported: list[tuple[int, float]] = []
    async with worker_pool(tmp_path, base, [(True, True)], ScriptedPlacement(does), device) as pool:
        target, request = pool.registry.resolve("tiny"), SampleRequest((1, 2), "tiny", 4)
        with pytest.raises(WorkerLost):
            await pool.sample(target, request, lambda *token: reported.append(token))
    assert reported == [(7, -0.5)]
    assert len(requests) == begun


async def test_a_request_that_waits_at_the_end_gets_an_error(tmp_path: Path, base: Path) -> None:
    has_asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    placement = ScriptedPlacement(lambda *_: _tell(loop, has_asked))
    async with worker_pool(tmp_path, base, [(True, True)], placement) as pool:
        sampling = asyncio.create_task(pool.sample(pool.registry.resolve("tiny"), SampleRequest((1, 2), "tiny", 4)))
        await has_asked.wait()
    with pytest.raises(EngineStopped):
        await sampling
    with pytest.raises(EngineStopped):
        await pool.create_model(NewModel("test", "agent", "tiny"))


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


def test_a_prompt_continues_the_longest_conversation() -> None:
    conversations = Conversations(capacity=3)
    conversations.remember([1, 2, 3], worker=0)
    conversations.remember([1, 2, 3, 4, 5], worker=1)
    assert conversations.find([1, 2, 3, 4]) == 0
    assert conversations.find([1, 2, 3, 4, 5, 6]) == 1
    assert conversations.find([1, 2]) is None  # they only begin alike
    conversations.forget(1)
    assert conversations.find([1, 2, 3, 4, 5, 6]) == 0
    for number in range(3):
        conversations.remember([9, number], worker=1)
    assert conversations.find([1, 2, 3, 4]) is None


def test_an_error_that_cannot_be_sent_is_told_all_the_same() -> None:
    error = ValueError(lambda: None)
    assert isinstance(Failed.of(error).error, RuntimeError)
    assert "ValueError" in str(Failed.of(error).error)
