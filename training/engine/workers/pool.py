"""The front of several workers: Computing that shares out samples and has all trainers take a step together."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

import structlog

from training.engine.computing import BusySeconds, EngineStopped, ModelDeleted, NewModel, TrainingTask, WorkerLost
from training.engine.engine import StepConflict, TrainResult
from training.engine.registry.checkpoints import Checkpoint
from training.engine.registry.model_record import BadModelDirectory, ModelRecord, StepTaken, Target
from training.engine.registry.registry import Registry
from training.engine.reproducibility import Reproducibility
from training.engine.sampling.figures import SamplingFigures
from training.engine.sampling.requests import OnToken, Sample, SampleRequest
from training.engine.tokenizers import Tokenizers
from training.engine.trainer.peers import TrainerLost
from training.engine.workers.conversations import Conversations
from training.engine.workers.handle import Handle, Question
from training.engine.workers.link import (
    CheckAsked,
    ForgetAsked,
    KnownModel,
    Placement,
    Progressed,
    SampleAsked,
    Tokens,
    Trained,
    TrainingAsked,
    TrainingGroup,
    WorkerFigures,
    WorkerSpec,
)

log = structlog.get_logger(__name__)

ATTEMPTS = 3
"""A sample or a training that so many workers died of is given up."""
UP_S = 300.0
"""For workers that are being started."""
ABANDON_S = 30.0
"""For a trainer to leave a step that is not to be finished: a micro-batch, a checkpoint that is being written. One that
takes longer is ended."""
CLOSE_S = 4.0
"""For trainers at the end, and then for all workers: the service waits ten seconds for the engine."""


class WorkerPool:
    """Computing in workers of their own, each on its device."""

    def __init__(
        self, registry: Registry, tokenizers: Tokenizers, specs: Sequence[WorkerSpec], placement: Placement
    ) -> None:
        self.train_steps = 0
        self._registry = registry
        self._tokenizers = tokenizers
        self._placement = placement
        self._handles = [Handle(spec, placement, self._worker_changed) for spec in specs]
        self._conversations = Conversations()
        self._news = asyncio.Event()
        """Set, and replaced, when a worker has come up or a training is asked for."""
        self._waiting: deque[TrainingTask] = deque()
        self._running: tuple[TrainingTask, asyncio.Task[TrainResult]] | None = None
        self._why: Exception | None = None
        """Why the running training was cancelled."""
        self._rendezvous: str | None = None
        """Of the group that the trainers are in now."""
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._train_all()), *(asyncio.create_task(h.keep()) for h in self._handles)]

    async def close(self) -> None:
        self._stopping = True
        self._tell_news()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._end_trainings(lambda _: True, EngineStopped("the engine is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=CLOSE_S)
        await asyncio.to_thread(self._placement.close)

    # Sampling

    async def sample(self, target: Target, request: SampleRequest, on_token: OnToken | None = None) -> Sample:
        """As Computing has it. A worker that dies is forgotten: on a CPU the same seed gives the same sample elsewhere.
        On a GPU it may give another, so one whose tokens are told already is not begun again."""
        if request.seed is None:
            request = replace(request, seed=secrets.randbits(53))
        grammar = request.grammar.text if request.grammar else None
        asked = SampleAsked(target, replace(request, grammar=None), grammar, on_token is not None)
        told = _Told(on_token)
        for _ in range(ATTEMPTS):
            handle = await self._sampler(request.prompt)
            question = handle.ask(asked, told.again())
            try:
                sample: Sample = await question.outcome
            except asyncio.CancelledError:
                question.cancel()
                raise
            except WorkerLost:
                if told.any and handle.spec.device != "cpu":
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
        """The worker that has the conversation, or the one with least to do. Waits until there is one."""
        self._refuse_if_stopping()
        await self._until(lambda: any(each.up and each.spec.samples for each in self._handles), "no worker is up")
        found = self._conversations.find(prompt)
        up = [each for each in self._handles if each.up and each.spec.samples]
        return next((each for each in up if each.spec.number == found), None) or min(up, key=lambda each: each.load)

    # Training

    def train(self, task: TrainingTask) -> None:
        self._refuse_if_stopping()
        self._waiting.append(task)
        self._tell_news()

    async def _train_all(self) -> None:
        while True:
            while not self._waiting:
                await self._news.wait()
            task = self._waiting.popleft()
            training = asyncio.create_task(self._train(task))
            self._running = task, training
            await asyncio.wait({training})
            self._running = None
            task.on_end(self._outcome(training))

    def _outcome(self, training: "asyncio.Task[TrainResult]") -> TrainResult | Exception:
        if training.cancelled():
            return self._why or EngineStopped("the engine is shutting down")
        error = training.exception()
        if error is None:
            self.train_steps += 1
            return training.result()
        return error if isinstance(error, Exception) else RuntimeError(str(error))

    async def _train(self, task: TrainingTask) -> TrainResult:
        """One training, begun again from the checkpoint if a trainer dies of it or beside it."""
        trainers = [each for each in self._handles if each.spec.trains]
        record, told = self._registry.get(task.model_id), _ToldSteps(task)
        parent = await asyncio.to_thread(self._newest, record.id)
        log.info("training begins", model_id=record.id, trainers=len(trainers))
        task.on_start()
        for _ in range(ATTEMPTS):
            await self._until(lambda: all(each.up for each in trainers), "not all trainers are up")
            ends = await self._together(task, KnownModel(record, parent), trainers, told)
            if isinstance(ends[0], Trained):
                if ends[0].written is not None:
                    await self._take_in(record, parent, self._registry.add, ends[0].written)
                return TrainResult(ends[0].step, ends[0].trained, ends[0].metrics)
            await self._take_in(record, parent, self._registry.look)
            newest = self._registry.newest(record.id)
            if newest.step > parent.step:  # it was written before the trainer died
                return TrainResult(newest.step, True, dict(newest.manifest.metrics))
            for end in ends:
                if isinstance(end, Exception) and not isinstance(end, WorkerLost | TrainerLost):
                    raise end
            log.warning("training begins again", model_id=record.id, errors=[str(each) for each in ends])
        raise TrainerLost(f"{ATTEMPTS} times a trainer ended in this step; the model is unchanged")

    def _newest(self, model_id: str) -> Checkpoint:
        """With its files on this machine."""
        return self._registry.checkpoint(model_id, self._registry.newest(model_id).step)

    async def _take_in(
        self, record: ModelRecord, parent: Checkpoint, how: Callable[..., object], *written: Checkpoint
    ) -> None:
        """Have the checkpoint in the registry. Raises StepConflict if another engine was faster, and what `how` does:
        then no worker has anything of that step any more."""
        try:
            await asyncio.to_thread(how, record.id, *written)
        except Exception as error:
            await self._forget(ForgetAsked(record))
            if isinstance(error, StepTaken):
                raise StepConflict(parent.step, self._registry.newest(record.id).step) from error
            raise

    async def _together(
        self, task: TrainingTask, model: KnownModel, trainers: Sequence[Handle], told: "_ToldSteps"
    ) -> list[Trained | Exception]:
        """How it ended on each trainer. As soon as it failed on one, the others leave it."""
        questions = [
            trainer.ask(TrainingAsked(task.steps, model, group), None if rank else told.again())
            for rank, (trainer, group) in enumerate(zip(trainers, self._groups(trainers), strict=True))
        ]
        outcomes = [question.outcome for question in questions]
        try:
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if any(not each.done() or each.exception() for each in outcomes):
                self._rendezvous = None
                await asyncio.shield(_abandoned(questions))
        ends = await asyncio.gather(*outcomes, return_exceptions=True)
        return [end if isinstance(end, Trained | Exception) else RuntimeError(str(end)) for end in ends]

    def _groups(self, trainers: Sequence[Handle]) -> list[TrainingGroup | None]:
        links = [each.link for each in trainers if each.link is not None]
        if len(trainers) == 1 or len(links) < len(trainers):
            return [None] * len(trainers)
        self._rendezvous = url = self._rendezvous or self._placement.rendezvous(links)
        return [TrainingGroup(rank, len(links), link.host, url) for rank, link in enumerate(links)]

    async def _end_trainings(self, which: Callable[[TrainingTask], bool], error: Exception) -> None:
        """End those that wait or run with that error; returns when no trainer is at them any more."""
        for task in [task for task in self._waiting if which(task)]:
            self._waiting.remove(task)
            task.on_end(error)
        if self._running is not None and which(self._running[0]):
            self._why = error
            self._running[1].cancel()
            await asyncio.wait({self._running[1]})

    # Models

    async def create_model(self, model: NewModel) -> ModelRecord:
        self._refuse_if_stopping()
        given = asdict(model) | {"tuning": model.tuning}
        return await asyncio.to_thread(lambda: self._registry.create(**given))

    async def check(self, model_id: str) -> Reproducibility:
        known = KnownModel(self._registry.get(model_id), await asyncio.to_thread(self._newest, model_id))
        handle = await self._sampler(())
        found: Reproducibility = await handle.ask(CheckAsked(known)).outcome
        return found

    async def delete_model(self, model_id: str) -> None:
        self._refuse_if_stopping()
        record = self._registry.get(model_id)
        await self._end_trainings(lambda task: task.model_id == model_id, ModelDeleted("the model was deleted"))
        await asyncio.to_thread(self._registry.delete, model_id)
        self._tokenizers.forget(record)
        await self._forget(ForgetAsked(record))

    async def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> tuple[list[int], list[int]]:
        self._refuse_if_stopping()
        deleted, not_found = await asyncio.to_thread(self._registry.delete_checkpoints, model_id, steps)
        await self._forget(ForgetAsked(self._registry.get(model_id), deleted))
        return deleted, not_found

    async def _forget(self, what: ForgetAsked) -> None:
        """By all workers; one that has ended has forgotten everything."""
        await asyncio.gather(*(handle.ask(what).outcome for handle in self._handles), return_exceptions=True)

    # How it is

    @property
    def sampling(self) -> SamplingFigures:
        found = [asdict(each.sampling) for each in self._figures]
        return SamplingFigures(**{each.name: sum(one[each.name] for one in found) for each in fields(SamplingFigures)})

    @property
    def busy_seconds(self) -> BusySeconds:
        """Of all workers together."""
        busy = [each.busy_seconds for each in self._figures]
        return BusySeconds(sum(each.sampling for each in busy), sum(each.training for each in busy))

    @property
    def reproducibility(self) -> Reproducibility | None:
        found = [each.reproducibility for each in self._figures if each.reproducibility is not None]
        return next((each for each in found if not each.reproducible), found[-1] if found else None)

    @property
    def details(self) -> Mapping[str, Any]:
        specs = [handle.spec for handle in self._handles]
        return {
            "training_weights": "fp8" if any(spec.fp8_training for spec in specs) else "exact",
            "workers": [_told(handle) for handle in self._handles],
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
        self._tell_news()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _until(self, true: Callable[[], bool], otherwise: str) -> None:
        try:
            async with asyncio.timeout(UP_S):
                while not true():
                    self._refuse_if_stopping()
                    await self._news.wait()
        except TimeoutError:
            raise WorkerLost(f"{otherwise}; the log says why") from None

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise EngineStopped("the engine is shutting down")


class _Told:
    """Who listens to a streamed sample hears each token once, however often the sample is begun."""

    def __init__(self, on_token: OnToken | None) -> None:
        self._on_token = on_token
        self._told = 0

    @property
    def any(self) -> bool:
        """Whether any token was told."""
        return self._told > 0

    def again(self) -> Callable[[Tokens | Progressed], None]:
        """A listener to the sample from its beginning."""
        before, told = self._told, 0

        def listen(message: Tokens | Progressed) -> None:
            nonlocal told
            assert isinstance(message, Tokens)
            for token, logprob in message.tokens:
                told += 1
                if self._on_token is not None and told > before:
                    self._told = told
                    self._on_token(token, logprob)

        return listen


class _ToldSteps:
    """Who follows a training hears of each optimizer step once, however often the training is begun."""

    def __init__(self, task: TrainingTask) -> None:
        self._task = task
        self._told = 0

    def again(self) -> Callable[[Tokens | Progressed], None]:
        """A listener to the training from its beginning."""
        before, told = self._told, 0

        def listen(message: Tokens | Progressed) -> None:
            nonlocal told
            assert isinstance(message, Progressed)
            told += message.progress.metrics is not None
            if message.progress.metrics is None or told > before:
                self._told = max(told, before)
                self._task.on_progress(message.progress)

        return listen


async def _abandoned(questions: Sequence[Question]) -> None:
    """None of them is worked at any more when this returns: who does not answer in time is ended."""
    for question in questions:
        question.cancel()
    await asyncio.wait([question.outcome for question in questions], timeout=ABANDON_S)
    for question in questions:
        if not question.outcome.done() and question.handle.link is not None:
            log.error("trainer ended: it did not leave a step", worker=question.handle.spec.number)
            await asyncio.to_thread(question.handle.link.end)
    await asyncio.gather(*(question.outcome for question in questions), return_exceptions=True)


def _told(handle: Handle) -> dict[str, Any]:
    """What `/health` says of a worker."""
    roles = [role for role, has in (("samples", handle.spec.samples), ("trains", handle.spec.trains)) if has]
    found = {"worker": handle.spec.number, "roles": roles, "up": handle.up, "place": handle.link and handle.link.place}
    figures = handle.figures
    if figures is None:
        return found
    told = {"figures": asdict(figures.sampling), "busy_seconds": asdict(figures.busy_seconds)}
    return {**found, **told, "loaded": list(figures.loaded)}
