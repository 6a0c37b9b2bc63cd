"""A worker: an engine that carries out the front's commands, whatever link they arrive on."""

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

from learnloop_service.training.engine.compute import Compute
from learnloop_service.training.engine.computing import Steps, TrainingTask
from learnloop_service.training.engine.engine import WAITING, Engine, Training, TrainResult
from learnloop_service.training.engine.registry.model_record import Target
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import Sample, SampleCancelled
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.trainer.grpo_step import StepProgress
from learnloop_service.training.engine.trainer.peers import Alone, TrainerLost
from learnloop_service.training.engine.workers.link import (
    HEARTBEAT_S,
    Ask,
    Cancel,
    CheckCommand,
    CommandAnswer,
    Failed,
    ForgetCommand,
    LinkClosed,
    Progressed,
    SampleCommand,
    StreamedTokens,
    ToWorker,
    Trained,
    TrainingCommand,
    TrainingGroup,
    WorkerEnd,
    WorkerFigures,
    WorkerReport,
    WorkerSpec,
)
from learnloop_service.training.engine.workers.trainers import Trainers, join_group

if TYPE_CHECKING:  # see Grammars
    from learnloop_service.training.engine.sampling.constraint import Grammar, Vocabulary

log = structlog.get_logger(__name__)


def serve(spec: WorkerSpec, link: WorkerEnd) -> None:
    """Carry out the front's commands. The process ends when the link is closed, because its results would reach no
    one."""
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
            train_threads=spec.train_threads if spec.trains else spec.threads,
            samples=spec.samples,
            fp8_training=spec.fp8_training,
        )
        self._compute = Compute(self._engine, threads=spec.threads)
        self._membership = _GroupMembership(torch.device(spec.device))
        self._outbox: queue.SimpleQueue[StreamedTokens | Progressed | CommandAnswer] = queue.SimpleQueue()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._compiling = asyncio.Lock()

    async def run(self) -> None:
        """Start the threads and run forever."""
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
        messages: list[StreamedTokens | Progressed | CommandAnswer] = []
        with suppress(LinkClosed):
            while True:
                self._link.send(WorkerReport(messages, self._figures()))
                messages = []
                with suppress(queue.Empty):
                    messages.append(self._outbox.get(timeout=HEARTBEAT_S))
                    while True:
                        messages.append(self._outbox.get_nowait())

    def _figures(self) -> WorkerFigures:
        busy, engine = replace(self._compute.busy_seconds), self._engine
        return WorkerFigures(self._compute.sampling, busy, engine.loaded, engine.reproducibility, engine.devices)

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, Cancel):
            if task := self._tasks.get(message.number):
                task.cancel()
            return
        self._tasks[message.number] = task = asyncio.create_task(self._answer(message))
        task.add_done_callback(lambda _: self._tasks.pop(message.number))

    async def _answer(self, ask: Ask) -> None:
        try:
            outcome = await self._outcome(ask)
        except asyncio.CancelledError:
            outcome = Failed.of(SampleCancelled("the request was cancelled"))
        except Exception as error:
            outcome = Failed.of(error)
        self._outbox.put(CommandAnswer(ask.number, outcome))

    async def _outcome(self, ask: Ask) -> object:
        match ask.what:
            case SampleCommand() as command:
                return await self._sample(ask.number, command)
            case TrainingCommand() as command:
                self._registry.learn(command.model.record, command.model.newest)
                return await self._train(ask.number, command)
            case CheckCommand(model):
                self._registry.learn(model.record, model.newest)
                return await self._compute.check(model.record.id)
            case ForgetCommand(record, None):
                return await self._compute.call(lambda engine: engine.forget(record))
            case ForgetCommand(record, steps):
                return await self._compute.call(lambda engine: engine.forget_checkpoints(record, steps or ()))

    async def _sample(self, number: int, command: SampleCommand) -> Sample:
        request = command.request
        if command.grammar is not None:
            async with self._compiling:  # the replies of a request share a grammar, compiled for the first of them
                grammar = await asyncio.to_thread(self._grammar, command.target, command.grammar)
            request = replace(request, grammar=grammar)
        if not command.streamed:
            return await self._compute.sample(command.target, request)
        return await self._compute.sample(
            command.target, request, lambda id, logprob: self._outbox.put(StreamedTokens(number, [(id, logprob)]))
        )

    def _grammar(self, target: Target, text: str) -> "Grammar":
        return _grammar(self._engine.tokenizer(target), text)

    async def _train(self, number: int, command: TrainingCommand) -> Trained:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[TrainResult | Exception] = loop.create_future()

        def progressed(progress: StepProgress) -> None:
            if progress.total:
                self._outbox.put(Progressed(number, progress))

        def ended_with(outcome: TrainResult | Exception) -> None:
            loop.call_soon_threadsafe(ended.set_result, outcome)

        task = TrainingTask(
            _JointSteps(command.steps, command.group, self._membership),
            on_start=lambda: None,
            on_progress=progressed,
            on_end=ended_with,
        )
        self._compute.train(task)
        try:
            outcome = await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._membership.leave()
            await self._compute.abandon(task, TrainerLost("the training was abandoned"))
            outcome = await ended
        if isinstance(outcome, Exception):
            self._membership.leave()
            log.warning("training failed", model_id=command.steps.model_id, exc_info=outcome)
            raise outcome
        writes = outcome.trained and (command.group is None or command.group.rank == 0)
        written = self._registry.newest(command.steps.model_id) if writes else None
        return Trained(outcome, written)


class _GroupMembership:
    """This trainer's membership in a group, which is kept from step to step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._joined: tuple[TrainingGroup, Trainers] | None = None

    def leave(self) -> None:
        """Leave the group. Can be called from any thread."""
        if self._joined is not None:
            self._joined[1].leave()
        self._joined = None

    def start(self, steps: Steps, group: TrainingGroup | None, engine: Engine) -> Training:
        """Start a training together with the rest of the group."""
        try:
            if group is not None:
                if self._joined is None or self._joined[0] != group:
                    self._joined = group, (yield from join_group(group, self._device, WAITING))
                engine.peers = self._joined[1]
            return (yield from steps.start(engine))
        finally:
            engine.peers = Alone()


@dataclass(frozen=True, slots=True)
class _JointSteps:
    """Steps that a group takes together."""

    steps: Steps
    group: TrainingGroup | None
    membership: _GroupMembership

    @property
    def model_id(self) -> str:
        return self.steps.model_id

    @property
    def expected_step(self) -> int | None:
        return self.steps.expected_step

    def start(self, engine: Engine) -> Training:
        return self.membership.start(self.steps, self.group, engine)


@lru_cache(32)
def _grammar(tokenizer: ChatTokenizer, text: str) -> "Grammar":
    from learnloop_service.training.engine.sampling.constraint import Grammar

    return Grammar(_vocabulary(tokenizer), text)


@lru_cache(32)
def _vocabulary(tokenizer: ChatTokenizer) -> "Vocabulary":
    from learnloop_service.training.engine.sampling.constraint import Vocabulary

    return Vocabulary(tokenizer.fast, sorted(tokenizer.stop_ids))
