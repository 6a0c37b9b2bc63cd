"""The compute thread, which owns torch, alternates between sampling and training, and is awaited from asyncio."""

import asyncio
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import structlog
import torch

from learnloop_service.training.engine.computing import BusySeconds, EngineStopped, ModelDeleted, TrainingTask
from learnloop_service.training.engine.engine import Engine, Training
from learnloop_service.training.engine.registry.model_record import ModelRecord, NewModel, Target
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.sampling.requests import Done, OnToken, Sample, SampleRequest
from learnloop_service.training.protocol.model_facts import Reproducibility

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Compute:
    """Computing on a thread of this process. Nothing else may touch the engine while it runs."""

    def __init__(self, engine: Engine, *, threads: int = 1) -> None:
        """`threads` is the number of torch threads while sampling. The engine says how many there are in training."""
        self.busy_seconds = BusySeconds()
        """Updated by the compute thread; can be read from any thread."""
        self.train_steps = 0
        """Number of training jobs that changed their model. The compute thread updates it; any thread can read it."""
        self._engine = engine
        self._threads = threads
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[TrainingTask] = deque()
        self._running: tuple[TrainingTask, Training] | None = None
        self._unfinished: dict[int, Done] = {}
        self._stopping = False
        self._sampled = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    @property
    def sampling(self) -> SamplingFigures:
        """Figures of sampling. Can be read from any thread."""
        return self._engine.sampler.figures

    @property
    def reproducibility(self) -> Reproducibility | None:
        """Same as Engine.reproducibility."""
        return self._engine.reproducibility

    @property
    def details(self) -> Mapping[str, Any]:
        """The weights used for sampling and training, and what the engine computes on."""
        devices = [asdict(figures) for figures in self._engine.devices]
        return {"training_weights": self._engine.training_weights, "devices": devices}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def close(self) -> None:
        """Stop after the current piece of work. Everything unfinished ends with EngineStopped."""
        self._calls.put(self._stop)
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 1.0)

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on the compute thread between two pieces of work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = function(self._engine)
            except Exception as error:
                _call_on_loop(loop, _settle, future, error)
            else:
                _call_on_loop(loop, _settle, future, result)

        self._enqueue(run)
        return await future

    async def sample(self, target: Target, request: SampleRequest, on_token: OnToken | None = None) -> Sample:
        """Return one sample. `on_token` is called on the event loop. Cancelling the caller cancels the request."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sample] = loop.create_future()
        number: list[int] = []

        def finish(outcome: Sample | Exception) -> None:
            self._unfinished.pop(id(future), None)
            _call_on_loop(loop, _settle, future, outcome)

        def token(id: int, logprob: float) -> None:
            _call_on_loop(loop, on_token, id, logprob)

        def submit() -> None:
            if future.cancelled():
                return
            self._unfinished[id(future)] = finish
            try:
                listener = token if on_token else self._first_token()
                number.append(self._engine.submit(target, request, listener, finish))
            except Exception as error:
                finish(error)

        self._enqueue(submit)
        try:
            return await future
        except asyncio.CancelledError:
            self._calls.put(lambda: self._engine.sampler.cancel(number[0]) if number else None)
            raise

    def _first_token(self) -> OnToken | None:
        """Return, on the first call, a listener that logs when this process samples its first token, which measures
        restarts."""
        if self._sampled:
            return None
        self._sampled = True
        tokens = itertools.count()
        return lambda *_: None if next(tokens) else log.info("first token sampled")

    def train(self, task: TrainingTask) -> None:
        """Queue a training. Trainings run one after another in this order."""
        self._enqueue(lambda: self._waiting.append(task))

    async def create_model(self, model: NewModel) -> ModelRecord:
        """Create a model. Raises the errors of Registry.create."""
        fields = asdict(model) | {"tuning": model.tuning}
        return await asyncio.to_thread(lambda: self._engine.registry.create(**fields))

    async def check(self, model_id: str) -> Reproducibility:
        """Check a model like Engine.check."""
        return await self.call(lambda engine: engine.check(model_id))

    async def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> tuple[list[int], list[int]]:
        """Delete checkpoints like Registry.delete_checkpoints."""
        return await self.call(lambda engine: engine.delete_checkpoints(model_id, steps))

    async def delete_model(self, model_id: str) -> None:
        """Delete a model. Its trainings end with ModelDeleted. Raises UnknownModel."""

        def delete(engine: Engine) -> None:
            engine.registry.get(model_id)
            self._end_trainings(lambda task: task.model_id == model_id, ModelDeleted("the model was deleted"))
            engine.delete_model(model_id)

        await self.call(delete)

    async def abandon(self, task: TrainingTask, error: Exception) -> None:
        """End a training with that error. Does nothing if it has ended."""
        await self.call(lambda _: self._end_trainings(lambda other: other is task, error))

    def _end_trainings(self, which: Callable[[TrainingTask], bool], error: Exception) -> None:
        if self._running and which(self._running[0]):
            task, training = self._running
            self._running = None
            training.close()
            task.on_end(error)
        for task in [task for task in self._waiting if which(task)]:
            self._waiting.remove(task)
            task.on_end(error)

    def _enqueue(self, call: Callable[[], None]) -> None:
        if self._stopping:
            raise EngineStopped("the engine is shutting down")
        self._calls.put(call)

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while not self._stopping:
            self._take_calls(wait=not (self._running or self._waiting or self._engine.sampler.busy))
            if self._stopping:
                break
            if not (self._running or self._waiting):
                self._sample_once()
                continue
            started = time.perf_counter()
            torch.set_num_threads(self._engine.torch_threads_to_train)
            self._train_once()
            torch.set_num_threads(self._threads)
            ended = time.perf_counter()
            self.busy_seconds.training += ended - started
            # Sampling gets as much time as training took, so that requests do not wait for a whole step.
            until = ended + (ended - started)
            while self._engine.sampler.busy and not self._stopping:
                self._sample_once()
                self._take_calls(wait=False)
                if time.perf_counter() >= until:
                    break
        self._abandon()

    def _take_calls(self, *, wait: bool) -> None:
        try:
            while True:
                self._calls.get(block=wait)()
                wait = False
        except queue.Empty:
            return

    def _sample_once(self) -> None:
        if self._engine.sampler.busy:
            started = time.perf_counter()
            self._engine.sampler.step()
            self.busy_seconds.sampling += time.perf_counter() - started

    def _train_once(self) -> None:
        if self._running is None:
            task = self._waiting.popleft()
            try:
                self._running = task, task.steps.start(self._engine)
            except Exception as error:
                task.on_end(error)
                return
            log.info("training begins", model_id=task.model_id)
            task.on_start()
        task, training = self._running
        try:
            task.on_progress(next(training))
        except StopIteration as end:
            self._running = None
            self.train_steps += end.value.trained
            task.on_end(end.value)
        except Exception as error:
            self._running = None
            task.on_end(error)

    def _abandon(self) -> None:
        stopped = EngineStopped("the engine is shutting down")
        if self._running is not None:
            task, training = self._running
            training.close()
            task.on_end(stopped)
        for task in self._waiting:
            task.on_end(stopped)
        for finish in list(self._unfinished.values()):
            finish(stopped)
        while not self._calls.empty():
            # Calls that were queued too late still have waiting callers. Anything they start is abandoned immediately.
            self._calls.get()()
        for finish in list(self._unfinished.values()):
            finish(stopped)


def _settle(future: "asyncio.Future[T]", outcome: T | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _call_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object] | None, *arguments: object) -> None:
    """Call a function on the event loop unless it is closed."""
    if function is not None and not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)
