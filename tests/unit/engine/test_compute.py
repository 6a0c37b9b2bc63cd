"""The compute thread: what waits is answered, what is left is stopped, sampling and training share the time."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.training.engine.compute import Compute
from learnloop_service.training.engine.computing import EngineStopped, ModelDeleted, PolicyStep, TrainingTask
from learnloop_service.training.engine.engine import Engine, TrainResult
from learnloop_service.training.engine.http.server import create_app
from learnloop_service.training.engine.registry.model_record import UnknownModel
from learnloop_service.training.engine.sampling.requests import SampleCancelled, SampleRequest
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.grpo_step import StepProgress
from learnloop_service.training.engine.trainer.trajectories import Group
from tests.fakes.engine import make_engine, odd_share, sampled_group

Outcome = TrainResult | Exception


class _Watched:
    """A training whose end can be awaited; `seen` lists what happened."""

    def __init__(self, model_id: str, groups: list[Group]) -> None:
        loop = asyncio.get_running_loop()
        self.seen: list[Any] = []
        self.end: asyncio.Future[Outcome] = loop.create_future()
        self.task = TrainingTask(
            PolicyStep(model_id, groups, TrainOptions(learning_rate=1e-3)),
            on_start=lambda: self.seen.append("started"),
            on_progress=self.seen.append,
            on_end=self._ended,
        )
        self._loop = loop

    def _ended(self, outcome: Outcome) -> None:
        self._loop.call_soon_threadsafe(self.end.set_result, outcome)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = make_engine(tmp_path, micro_batch_tokens=60)
    engine.registry.create(project="test", name="agent", base_model="tiny")
    return engine


@pytest.fixture
def group(engine: Engine) -> Group:
    return sampled_group(engine, "test/agent", odd_share)


@pytest.fixture
def groups(engine: Engine) -> list[Group]:
    """With different questions: what is the same in several groups is computed once."""
    return [sampled_group(engine, "test/agent", odd_share, question=f"{number}: when?") for number in range(15)]


@pytest.fixture
async def compute(engine: Engine, group: Group) -> AsyncIterator[Compute]:
    compute = Compute(engine)
    compute.start()
    yield compute
    await compute.close()


def _request(engine: Engine, max_tokens: int = 8, seed: int = 1) -> SampleRequest:
    return SampleRequest((30, 31, 32), engine.registry.resolve("tiny").key, max_tokens, seed=seed)


async def test_samples_tokens_and_errors_reach_who_waits(engine: Engine, compute: Compute) -> None:
    target = engine.registry.resolve("tiny")
    tokens: list[int] = []
    sample = await compute.sample(target, _request(engine), lambda token, _: tokens.append(token))
    assert tokens == sample.ids
    with pytest.raises(ValueError, match="max_tokens"):
        await compute.sample(target, _request(engine, max_tokens=0))
    with pytest.raises(UnknownModel):
        await compute.call(lambda engine: engine.registry.get("model-none"))
    assert await compute.call(lambda engine: len(engine.registry.models())) == 1


async def test_who_leaves_takes_the_request_along(engine: Engine, compute: Compute) -> None:
    first = asyncio.Event()
    waiting = asyncio.create_task(
        compute.sample(engine.registry.resolve("tiny"), _request(engine, 480), lambda *_: first.set())
    )
    await first.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not await compute.call(lambda engine: engine.sampler.busy)


async def test_sampling_goes_on_while_a_model_is_trained(engine: Engine, groups: list[Group], compute: Compute) -> None:
    training = _Watched(engine.registry.models()[0].id, groups)
    compute.train(training.task)
    await compute.sample(engine.registry.resolve("tiny"), _request(engine))
    assert not training.end.done()
    result = await training.end
    assert isinstance(result, TrainResult)
    assert result.step == 1
    assert training.seen[0] == "started"
    counts = [item.finished for item in training.seen[1:] if isinstance(item, StepProgress) and item.total > 1]
    assert counts == list(range(1, 1 + len(counts)))
    assert len(counts) > 10


async def test_trainings_run_one_after_the_other(engine: Engine, compute: Compute, group: Group) -> None:
    model = engine.registry.models()[0].id
    trainings = [_Watched(model, [group]) for _ in range(3)]
    for training in trainings:
        compute.train(training.task)
    results = [await training.end for training in trainings]
    assert [result.step for result in results if isinstance(result, TrainResult)] == [1, 2, 3]


async def test_it_counts_the_seconds_that_it_works(engine: Engine, compute: Compute, group: Group) -> None:
    busy = compute.busy_seconds
    assert busy.sampling == 0.0
    assert busy.training == 0.0
    await compute.sample(engine.registry.resolve("tiny"), _request(engine))
    await compute.call(lambda _: None)  # a piece of work is counted after its end is reported
    sampling = busy.sampling
    assert sampling > 0.0
    assert busy.training == 0.0
    training = _Watched(engine.registry.models()[0].id, [group])
    compute.train(training.task)
    await training.end
    await compute.call(lambda _: None)
    assert busy.training > 0.0
    assert busy.sampling == sampling
    assert compute.train_steps == 1


async def test_deleting_a_model_ends_its_trainings(engine: Engine, compute: Compute, group: Group) -> None:
    model = engine.registry.models()[0].id
    trainings = [_Watched(model, [group] * 200) for _ in range(2)]
    for training in trainings:
        compute.train(training.task)
    await compute.delete_model(model)
    assert [type(await training.end) for training in trainings] == [ModelDeleted, ModelDeleted]
    with pytest.raises(UnknownModel):
        await compute.delete_model(model)


async def test_closing_leaves_nobody_waiting(engine: Engine, compute: Compute, group: Group) -> None:
    model = engine.registry.models()[0].id
    trainings = [_Watched(model, [group] * 200) for _ in range(2)]
    for training in trainings:
        compute.train(training.task)
    waiting = asyncio.create_task(compute.sample(engine.registry.resolve("tiny"), _request(engine, 480)))
    await compute.call(lambda _: None)
    await compute.close()
    with pytest.raises(EngineStopped):
        await waiting
    assert [type(await training.end) for training in trainings] == [EngineStopped, EngineStopped]
    with pytest.raises(EngineStopped):
        await compute.call(lambda _: None)
    assert engine.registry.newest(model).step == 0


async def test_dropped_weights_end_their_requests(engine: Engine, compute: Compute) -> None:
    model = engine.registry.models()[0].id
    target = engine.registry.resolve("test/agent")
    first = asyncio.Event()
    request = SampleRequest((30, 31), target.key, 480, seed=1)
    waiting = asyncio.create_task(compute.sample(target, request, lambda *_: first.set()))
    await first.wait()
    await compute.delete_model(model)
    with pytest.raises(Exception, match="test/agent@0") as caught:
        await waiting
    assert not isinstance(caught.value, SampleCancelled)


async def test_a_client_that_hangs_up_stops_its_request(engine: Engine, tmp_path: Path) -> None:
    """The test speaks ASGI, because only there it can be seen that nothing is sampled any more."""
    app = create_app(engine.registry, Compute(engine), engine.tokenizer, data_dir=tmp_path)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 480}).encode()
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def run_lifespan(started: asyncio.Event, stop: asyncio.Event) -> None:
        async def receive() -> dict[str, Any]:
            if not started.is_set():
                started.set()
                return {"type": "lifespan.startup"}
            await stop.wait()
            return {"type": "lifespan.shutdown"}

        async def ignore(_: Any) -> None:
            pass

        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, ignore)

    started, stop = asyncio.Event(), asyncio.Event()
    lifespan = asyncio.create_task(run_lifespan(started, stop))
    await started.wait()
    scope: Any = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "headers": []}
    incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
    incoming.put_nowait({"type": "http.disconnect"})
    await app(scope, incoming.get, send)
    assert messages[0]["status"] == 499
    stop.set()
    await lifespan
    assert not engine.sampler.busy
