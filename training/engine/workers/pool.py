"""The front of several workers: a Computing that distributes samples and has all trainers take each step together."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import structlog

from learnloop_service.training.engine.computing import (
    BusySeconds,
    EngineStopped,
    ModelDeleted,
    RestoredStep,
    TrainingTask,
    WorkerLost,
)
from learnloop_service.training.engine.engine import StepConflict, TrainResult
from learnloop_service.training.engine.registry.checkpoints import StoredCheckpoint
from learnloop_service.training.engine.registry.model_record import (
    BadModelDirectory,
    ModelRecord,
    NewModel,
    StepTaken,
    Target,
)
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.figures import SamplingFigures, total
from learnloop_service.training.engine.sampling.requests import OnToken, Sample, SampleRequest
from learnloop_service.training.engine.text.tokenizers import Tokenizers
from learnloop_service.training.engine.trainer.peers import TrainerLost
from learnloop_service.training.engine.workers.conversations import Conversations
from learnloop_service.training.engine.workers.handle import Handle, WorkerCommand
from learnloop_service.training.engine.workers.link import (
    CheckCommand,
    ForgetCommand,
    KnownModel,
    LinkClosed,
    Placement,
    Progressed,
    SampleCommand,
    StreamedTokens,
    Trained,
    TrainingCommand,
    TrainingGroup,
    WorkerFigures,
    WorkerSpec,
)
from learnloop_service.training.protocol.model_facts import Reproducibility

log = structlog.get_logger(__name__)

ATTEMPTS = 3
"""Number of workers that may die of the same sample or training before it is given up."""
UP_S = 300.0
"""Longest wait for workers to start, in seconds."""
ABANDON_S = 30.0
"""Longest time for a trainer to leave an abandoned step, in seconds; it may have to finish a micro-batch or a
checkpoint first. A trainer that takes longer is ended."""
CLOSE_S = 4.0
"""Longest wait for trainers to stop at shutdown, in seconds, and then again for all workers. The service gives the
engine ten seconds."""


class WorkerPool:
    """Computing in separate worker processes, each with its own device."""

    def __init__(
        self, registry: Registry, tokenizers: Tokenizers, specs: Sequence[WorkerSpec], placement: Placement
    ) -> None:
        self.train_steps = 0
        self._registry = registry
        self._tokenizers = tokenizers
        self._placement = placement
        self._handles = [Handle(spec, placement, self._worker_changed) for spec in specs]
        self._conversations = Conversations()
        self._change = asyncio.Event()
        """Set and replaced whenever a worker comes up or ends, a training is queued, or the pool is closing."""
        self._waiting: deque[TrainingTask] = deque()
        self._running: tuple[TrainingTask, asyncio.Task[TrainResult]] | None = None
        self._cancel_error: Exception | None = None
        """Error that the cancelled running training ends with."""
        self._rendezvous: str | None = None
        """Meeting point of the trainers' current group."""
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._train_all()), *(asyncio.create_task(h.keep()) for h in self._handles)]

    async def close(self) -> None:
        self._stopping = True
        self._notify()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._end_trainings(lambda _: True, EngineStopped("the engine is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=CLOSE_S)
        await asyncio.to_thread(self._placement.close)

    # Sampling

    async def sample(self, target: Target, request: SampleRequest, on_token: OnToken | None = None) -> Sample:
        """Sample like Computing, and retry on another worker if one dies. On a CPU the same seed gives the same sample
        on any worker. On a GPU it may not, so a sample whose tokens were already streamed is not retried there."""
        if request.seed is None:
            request = replace(request, seed=secrets.randbits(53))
        grammar = request.grammar.text if request.grammar else None
        command = SampleCommand(target, replace(request, grammar=None), grammar, on_token is not None)
        replay = TokenReplay(on_token)
        for _ in range(ATTEMPTS):
            handle = await self._sampler(request.prompt)
            question = handle.ask(command, replay.listener())
            try:
                sample: Sample = await question.outcome
            except asyncio.CancelledError:
                question.cancel()
                raise
            except WorkerLost:
                if replay.delivered_any and handle.spec.device != "cpu":
                    raise
                continue
            except (BadModelDirectory, OSError):
                if target.model is not None:  # its files may have been lost since they were verified
                    await asyncio.to_thread(self._registry.recheck, target.model.id, target.step)
                raise
            self._conversations.remember((*request.prompt, *sample.ids), handle.spec.number)
            return sample
        raise WorkerLost(f"{ATTEMPTS} workers ended while they sampled this reply")

    async def _sampler(self, prompt: Sequence[int]) -> Handle:
        """Return the worker that has the conversation, or else the least busy one. Waits until a worker is up."""
        self._refuse_if_stopping()
        await self._until(lambda: any(handle.up and handle.spec.samples for handle in self._handles), "no worker is up")
        worker = self._conversations.find(prompt)
        up = [handle for handle in self._handles if handle.up and handle.spec.samples]
        return next((handle for handle in up if handle.spec.number == worker), None) or min(
            up, key=lambda handle: handle.load
        )

    # Training

    def train(self, task: TrainingTask) -> None:
        self._refuse_if_stopping()
        self._waiting.append(task)
        self._notify()

    async def _train_all(self) -> None:
        while True:
            while not self._waiting:
                await self._change.wait()
            task = self._waiting.popleft()
            training = asyncio.create_task(self._train(task))
            self._running = task, training
            await asyncio.wait({training})
            self._running = None
            task.on_end(self._outcome(training))

    def _outcome(self, training: "asyncio.Task[TrainResult]") -> TrainResult | Exception:
        if training.cancelled():
            return self._cancel_error or EngineStopped("the engine is shutting down")
        error = training.exception()
        if error is None:
            self.train_steps += training.result().trained
            return training.result()
        return error if isinstance(error, Exception) else RuntimeError(str(error))

    async def _train(self, task: TrainingTask) -> TrainResult:
        """Carry out one training, and restart it from the checkpoint if a trainer dies during it."""
        trainers = [handle for handle in self._handles if handle.spec.trains]
        record, replay = self._registry.get(task.model_id), StepReplay(task)
        parent = await asyncio.to_thread(self._newest, record.id)
        log.info("training begins", model_id=record.id, trainers=len(trainers))
        task.on_start()
        if isinstance(task.steps, RestoredStep):
            return await self._restore(record, parent, task.steps)
        for _ in range(ATTEMPTS):
            await self._until(lambda: all(trainer.up for trainer in trainers), "not all trainers are up")
            ends = await self._train_on(task, KnownModel(record, parent), trainers, replay)
            if isinstance(ends[0], Trained):
                if ends[0].written is not None:
                    await self._register(record, parent, self._registry.add, ends[0].written)
                return ends[0].result
            await self._register(record, parent, self._registry.look)
            newest = self._registry.newest(record.id)
            if newest.step > parent.step:  # the checkpoint was written before the trainer died
                return TrainResult(newest.step, True, dict(newest.manifest.metrics))
            for end in ends:
                if isinstance(end, Exception) and not isinstance(end, WorkerLost | TrainerLost):
                    raise end
            log.warning("training begins again", model_id=record.id, errors=[str(end) for end in ends])
        raise TrainerLost(f"{ATTEMPTS} times a trainer ended in this step; the model is unchanged")

    async def _restore(self, record: ModelRecord, parent: StoredCheckpoint, steps: RestoredStep) -> TrainResult:
        """Restore a checkpoint like Engine.restore. It takes no trainer, because only files are copied."""
        if steps.expected_step not in (None, parent.step):
            raise StepConflict(steps.expected_step, parent.step)
        try:
            restored = await asyncio.to_thread(self._registry.restore, record.id, parent, steps.step)
        except StepTaken as conflict:
            raise StepConflict(parent.step, self._registry.newest(record.id).step) from conflict
        return TrainResult(restored.step, True, dict(restored.manifest.metrics))

    def _newest(self, model_id: str) -> StoredCheckpoint:
        """Return the newest checkpoint with its files on this machine."""
        return self._registry.checkpoint(model_id, self._registry.newest(model_id).step)

    async def _register(
        self, record: ModelRecord, parent: StoredCheckpoint, how: Callable[..., object], *written: StoredCheckpoint
    ) -> None:
        """Record a checkpoint in the registry by calling `how`. Raises StepConflict if another engine was faster, and
        the errors of `how`; the workers have dropped the step from memory by then."""
        try:
            await asyncio.to_thread(how, record.id, *written)
        except Exception as error:
            await self._forget(ForgetCommand(record))
            if isinstance(error, StepTaken):
                raise StepConflict(parent.step, self._registry.newest(record.id).step) from error
            raise

    async def _train_on(
        self, task: TrainingTask, model: KnownModel, trainers: Sequence[Handle], replay: "StepReplay"
    ) -> list[Trained | Exception]:
        """Run the training on all trainers and return how it ended on each. As soon as it fails on one, the others
        abandon it."""
        first = trainers[0].link
        try:
            groups = await self._groups(trainers)
        except LinkClosed as error:
            await self._until(lambda: trainers[0].link is not first, "the first trainer does not answer")
            return [WorkerLost(str(error))]
        questions = [
            trainer.ask(TrainingCommand(task.steps, model, group), None if rank else replay.listener())
            for rank, (trainer, group) in enumerate(zip(trainers, groups, strict=True))
        ]
        outcomes = [question.outcome for question in questions]
        try:
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if any(not outcome.done() or outcome.exception() for outcome in outcomes):
                self._rendezvous = None
                await asyncio.shield(_abandon(questions))
        ends = await asyncio.gather(*outcomes, return_exceptions=True)
        return [end if isinstance(end, Trained | Exception) else RuntimeError(str(end)) for end in ends]

    async def _groups(self, trainers: Sequence[Handle]) -> list[TrainingGroup | None]:
        """Raises LinkClosed when the first trainer has ended."""
        links = [trainer.link for trainer in trainers if trainer.link is not None]
        if len(trainers) == 1 or len(links) < len(trainers):
            return [None] * len(trainers)
        # On a thread: a trainer that is frozen does not answer until it is ended, and only this loop can end it.
        if (url := self._rendezvous) is None:
            new_url = await asyncio.to_thread(self._placement.rendezvous, links)
            self._rendezvous = url = new_url
        return [TrainingGroup(rank, len(links), link.host, url) for rank, link in enumerate(links)]

    async def _end_trainings(self, which: Callable[[TrainingTask], bool], error: Exception) -> None:
        """End waiting and running trainings with that error, and return when no trainer works on them any more."""
        for task in [task for task in self._waiting if which(task)]:
            self._waiting.remove(task)
            task.on_end(error)
        if self._running is not None and which(self._running[0]):
            self._cancel_error = error
            self._running[1].cancel()
            await asyncio.wait({self._running[1]})

    # Models

    async def create_model(self, model: NewModel) -> ModelRecord:
        self._refuse_if_stopping()
        fields = asdict(model) | {"tuning": model.tuning}
        return await asyncio.to_thread(lambda: self._registry.create(**fields))

    async def check(self, model_id: str) -> Reproducibility:
        model = KnownModel(self._registry.get(model_id), await asyncio.to_thread(self._newest, model_id))
        handle = await self._sampler(())
        reproducibility: Reproducibility = await handle.ask(CheckCommand(model)).outcome
        return reproducibility

    async def delete_model(self, model_id: str) -> None:
        self._refuse_if_stopping()
        record = self._registry.get(model_id)
        await self._end_trainings(lambda task: task.model_id == model_id, ModelDeleted("the model was deleted"))
        await asyncio.to_thread(self._registry.delete, model_id)
        self._tokenizers.forget(record)
        await self._forget(ForgetCommand(record))

    async def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> tuple[list[int], list[int]]:
        self._refuse_if_stopping()
        deleted, not_found = await asyncio.to_thread(self._registry.delete_checkpoints, model_id, steps)
        await self._forget(ForgetCommand(self._registry.get(model_id), deleted))
        return deleted, not_found

    async def _forget(self, what: ForgetCommand) -> None:
        """Have all workers forget this. A worker that has ended has nothing left to forget."""
        await asyncio.gather(*(handle.ask(what).outcome for handle in self._handles), return_exceptions=True)

    # Health

    @property
    def sampling(self) -> SamplingFigures:
        return total(figures.sampling for figures in self._figures)

    @property
    def busy_seconds(self) -> BusySeconds:
        """Busy seconds summed over all workers."""
        busy = [figures.busy_seconds for figures in self._figures]
        return BusySeconds(sum(seconds.sampling for seconds in busy), sum(seconds.training for seconds in busy))

    @property
    def reproducibility(self) -> Reproducibility | None:
        checks = [figures.reproducibility for figures in self._figures if figures.reproducibility is not None]
        return next((check for check in checks if not check.reproducible), checks[-1] if checks else None)

    @property
    def details(self) -> Mapping[str, Any]:
        specs = [handle.spec for handle in self._handles]
        return {
            "training_weights": "fp8" if any(spec.fp8_training for spec in specs) else "exact",
            "devices": [asdict(device) for figures in self._figures for device in figures.devices],
            "workers": [_health(handle) for handle in self._handles],
        }

    @property
    def _figures(self) -> list[WorkerFigures]:
        return [handle.figures for handle in self._handles if handle.figures is not None]

    # Workers

    def _worker_changed(self, handle: Handle) -> None:
        if not handle.up:
            self._conversations.forget(handle.spec.number)
            if handle.spec.trains:
                self._rendezvous = None
        self._notify()

    def _notify(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _until(self, true: Callable[[], bool], otherwise: str) -> None:
        try:
            async with asyncio.timeout(UP_S):
                while not true():
                    self._refuse_if_stopping()
                    await self._change.wait()
        except TimeoutError:
            raise WorkerLost(f"{otherwise}; the log says why") from None

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise EngineStopped("the engine is shutting down")


class TokenReplay:
    """Streams each token of a sample to `on_token` exactly once, however often the sample is restarted."""

    def __init__(self, on_token: OnToken | None) -> None:
        self._on_token = on_token
        self._delivered = 0

    @property
    def delivered_any(self) -> bool:
        """Whether any token has been streamed."""
        return self._delivered > 0

    def listener(self) -> Callable[[StreamedTokens | Progressed], None]:
        """Return a listener for a sample that starts from the beginning."""
        before, count = self._delivered, 0

        def listen(message: StreamedTokens | Progressed) -> None:
            nonlocal count
            assert isinstance(message, StreamedTokens)
            for token, logprob in message.tokens:
                count += 1
                if self._on_token is not None and count > before:
                    self._delivered = count
                    self._on_token(token, logprob)

        return listen


class StepReplay:
    """Reports each optimizer step of a training exactly once, however often the training is restarted."""

    def __init__(self, task: TrainingTask) -> None:
        self._task = task
        self._delivered = 0

    def listener(self) -> Callable[[StreamedTokens | Progressed], None]:
        """Return a listener for a training that starts from the beginning."""
        before, count = self._delivered, 0

        def listen(message: StreamedTokens | Progressed) -> None:
            nonlocal count
            assert isinstance(message, Progressed)
            count += message.progress.metrics is not None
            if message.progress.metrics is None or count > before:
                self._delivered = max(count, before)
                self._task.on_progress(message.progress)

        return listen


async def _abandon(questions: Sequence[WorkerCommand]) -> None:
    """Cancel these questions and return when no worker works on them any more. A worker that does not answer in time is
    ended."""
    for question in questions:
        question.cancel()
    await asyncio.wait([question.outcome for question in questions], timeout=ABANDON_S)
    for question in questions:
        if not question.outcome.done() and question.handle.link is not None:
            log.error("trainer ended: it did not leave a step", worker=question.handle.spec.number)
            await asyncio.to_thread(question.handle.link.end)
    await asyncio.gather(*(question.outcome for question in questions), return_exceptions=True)


def _health(handle: Handle) -> dict[str, Any]:
    """Return what `/health` reports about a worker."""
    roles = [role for role, has in (("samples", handle.spec.samples), ("trains", handle.spec.trains)) if has]
    health = {
        "worker": handle.spec.number,
        "roles": roles,
        "up": handle.up,
        "place": handle.link and handle.link.location,
    }
    figures = handle.figures
    if figures is None:
        return health
    details = {"figures": asdict(figures.sampling), "busy_seconds": asdict(figures.busy_seconds)}
    return {**health, **details, "loaded": list(figures.loaded)}
