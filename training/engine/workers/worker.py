"""A worker: an engine that does what the front asks of it, over whatever link its messages come."""

import asyncio
import os
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import structlog
import torch

from training.engine.compute import Compute
from training.engine.computing import Steps, TrainingTask
from training.engine.engine import WAITING, Engine, Training, TrainResult
from training.engine.registry.model_record import Target
from training.engine.registry.registry import Registry
from training.engine.sampling.requests import Sample, SampleCancelled
from training.engine.sampling.sampler import Sampler
from training.engine.tokens import ChatTokenizer
from training.engine.trainer.grpo_step import Progress
from training.engine.trainer.peers import Alone, TrainerLost
from training.engine.workers.link import (
    HEARTBEAT_S,
    Answer,
    Ask,
    Cancel,
    CheckAsked,
    Failed,
    ForgetAsked,
    LinkClosed,
    Progressed,
    Report,
    SampleAsked,
    Tokens,
    ToWorker,
    Trained,
    TrainingAsked,
    TrainingGroup,
    WorkerEnd,
    WorkerFigures,
    WorkerSpec,
)
from training.engine.workers.trainers import Trainers, met

if TYPE_CHECKING:  # see Grammars
    from training.engine.sampling.constraint import Grammar, Vocabulary

log = structlog.get_logger(__name__)


def serve(spec: WorkerSpec, link: WorkerEnd) -> None:
    """Do what the front asks. When the link is closed, the process ends: nobody would hear what it has to say."""
    asyncio.run(_Worker(spec, link).run())


class _Worker:
    def __init__(self, spec: WorkerSpec, link: WorkerEnd) -> None:
        self._link = link
        self._registry = Registry(spec.data_dir, spec.base_models, spec.allowed_base_directories, follows=True)
        self._engine = Engine(
            self._registry,
            Sampler(slots=spec.slots, cache_bytes=spec.cache_bytes),
            device=spec.device,
            micro_batch_tokens=spec.micro_batch_tokens,
            threads=spec.threads,
            samples=spec.samples,
            fp8_training=spec.fp8_training,
        )
        self._compute = Compute(self._engine, threads=spec.threads, train_threads=spec.train_threads)
        self._together = _Together(torch.device(spec.device))
        self._said: queue.SimpleQueue[Tokens | Progressed | Answer] = queue.SimpleQueue()
        self._doing: dict[int, asyncio.Task[None]] = {}
        self._compiling = asyncio.Lock()

    async def run(self) -> None:
        """Never returns."""
        self._compute.start()
        threading.Thread(target=self._receive, args=(asyncio.get_running_loop(),), name="receive", daemon=True).start()
        threading.Thread(target=self._report, name="report", daemon=True).start()
        await asyncio.Event().wait()

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                loop.call_soon_threadsafe(self._take, self._link.receive())
        except LinkClosed:
            os._exit(0)

    def _report(self) -> None:
        messages: list[Tokens | Progressed | Answer] = []
        with suppress(LinkClosed):
            while True:
                self._link.send(Report(messages, self._figures()))
                messages = []
                with suppress(queue.Empty):
                    messages.append(self._said.get(timeout=HEARTBEAT_S))
                    while True:
                        messages.append(self._said.get_nowait())

    def _figures(self) -> WorkerFigures:
        busy, engine = replace(self._compute.busy_seconds), self._engine
        return WorkerFigures(self._compute.sampling, busy, engine.loaded, engine.reproducibility)

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, Cancel):
            if task := self._doing.get(message.number):
                task.cancel()
            return
        self._doing[message.number] = task = asyncio.create_task(self._answer(message))
        task.add_done_callback(lambda _: self._doing.pop(message.number))

    async def _answer(self, ask: Ask) -> None:
        try:
            outcome = await self._outcome(ask)
        except asyncio.CancelledError:
            outcome = Failed.of(SampleCancelled("the request was cancelled"))
        except Exception as error:
            outcome = Failed.of(error)
        self._said.put(Answer(ask.number, outcome))

    async def _outcome(self, ask: Ask) -> object:
        match ask.what:
            case SampleAsked() as asked:
                return await self._sample(ask.number, asked)
            case TrainingAsked() as asked:
                self._registry.learn(asked.model.record, asked.model.newest)
                return await self._train(ask.number, asked)
            case CheckAsked(model):
                self._registry.learn(model.record, model.newest)
                return await self._compute.check(model.record.id)
            case ForgetAsked(record, None):
                return await self._compute.call(lambda engine: engine.forget(record))
            case ForgetAsked(record, steps):
                return await self._compute.call(lambda engine: engine.forget_checkpoints(record, steps or ()))

    async def _sample(self, number: int, asked: SampleAsked) -> Sample:
        request = asked.request
        if asked.grammar is not None:
            async with self._compiling:  # the replies of a request share a grammar, compiled for the first of them
                grammar = await asyncio.to_thread(self._grammar, asked.target, asked.grammar)
            request = replace(request, grammar=grammar)
        if not asked.streamed:
            return await self._compute.sample(asked.target, request)
        return await self._compute.sample(
            asked.target, request, lambda id, logprob: self._said.put(Tokens(number, [(id, logprob)]))
        )

    def _grammar(self, target: Target, text: str) -> "Grammar":
        return _grammar(self._engine.tokenizer(target), text)

    async def _train(self, number: int, asked: TrainingAsked) -> Trained:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[TrainResult | Exception] = loop.create_future()

        def progressed(progress: Progress) -> None:
            if progress.total:
                self._said.put(Progressed(number, progress))

        def ended_with(outcome: TrainResult | Exception) -> None:
            loop.call_soon_threadsafe(ended.set_result, outcome)

        task = TrainingTask(
            _JointSteps(asked.steps, asked.group, self._together),
            on_start=lambda: None,
            on_progress=progressed,
            on_end=ended_with,
        )
        self._compute.train(task)
        try:
            outcome = await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._together.leave()
            await self._compute.abandon(task, TrainerLost("the training was abandoned"))
            outcome = await ended
        if isinstance(outcome, Exception):
            self._together.leave()
            log.warning("training failed", model_id=asked.steps.model_id, exc_info=outcome)
            raise outcome
        writes = outcome.trained and (asked.group is None or asked.group.rank == 0)
        written = self._registry.newest(asked.steps.model_id) if writes else None
        return Trained(outcome.step, outcome.trained, outcome.metrics, written)


class _Together:
    """The group that this trainer is in. It is kept from step to step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._joined: tuple[TrainingGroup, Trainers] | None = None

    def leave(self) -> None:
        """From any thread."""
        if self._joined is not None:
            self._joined[1].leave()
        self._joined = None

    def start(self, steps: Steps, group: TrainingGroup | None, engine: Engine) -> Training:
        """A training by all of the group."""
        try:
            if group is not None:
                if self._joined is None or self._joined[0] != group:
                    self._joined = group, (yield from met(group, self._device, WAITING))
                engine.peers = self._joined[1]
            return (yield from steps.start(engine))
        finally:
            engine.peers = Alone()


@dataclass(frozen=True, slots=True)
class _JointSteps:
    """Steps that a group takes together."""

    steps: Steps
    group: TrainingGroup | None
    together: _Together

    @property
    def model_id(self) -> str:
        return self.steps.model_id

    @property
    def expected_step(self) -> int | None:
        return self.steps.expected_step

    def start(self, engine: Engine) -> Training:
        return self.together.start(self.steps, self.group, engine)


@lru_cache(32)
def _grammar(tokenizer: ChatTokenizer, text: str) -> "Grammar":
    from training.engine.sampling.constraint import Grammar

    return Grammar(_vocabulary(tokenizer), text)


@lru_cache(32)
def _vocabulary(tokenizer: ChatTokenizer) -> "Vocabulary":
    from training.engine.sampling.constraint import Vocabulary

    return Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids))
