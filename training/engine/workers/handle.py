"""One worker as seen from the front: started, sent commands, watched, and restarted after it has ended."""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from learnloop_service.training.engine.computing import WorkerLost
from learnloop_service.training.engine.workers.link import (
    Ask,
    Cancel,
    CheckCommand,
    CommandAnswer,
    Failed,
    ForgetCommand,
    FrontEnd,
    LinkClosed,
    Placement,
    Progressed,
    SampleCommand,
    StreamedTokens,
    ToWorker,
    TrainingCommand,
    WorkerFigures,
    WorkerReport,
    WorkerSpec,
)

log = structlog.get_logger(__name__)

LOOK_S = 5.0
SILENT_LOOKS = 12
"""Number of consecutive looks without a message after which a worker is considered frozen and ended. Looks are counted
rather than seconds because the machine may have slept."""
START_LOOKS = 120
"""Looks allowed before a worker's first message, because importing can take long on a slow disk."""
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 15.0
_STABLE_S = 60.0
"""A worker that lived longer than this, in seconds, did not fail because of how it was started."""

Listener = Callable[[StreamedTokens | Progressed], None]


class WorkerCommand:
    """A command sent to a worker. `outcome` resolves to what the command's docstring in `link.py` says, an error, or
    WorkerLost."""

    def __init__(self, handle: "Handle", number: int, listener: Listener | None) -> None:
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.handle = handle
        self.number = number
        self.listener = listener

    def cancel(self) -> None:
        """Ask the worker to stop. The question is still answered."""
        self.handle.post(Cancel(self.number))

    def settle(self, outcome: object) -> None:
        """Set the outcome unless the caller has stopped waiting."""
        if self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class Handle:
    """The front's handle of one worker, to be used from the event loop."""

    def __init__(self, spec: WorkerSpec, placement: Placement, changed: Callable[["Handle"], None]) -> None:
        """`changed` is called when the worker comes up and when it has ended."""
        self.spec = spec
        self.figures: WorkerFigures | None = None
        """The worker's latest figures, or None while it is not up."""
        self.link: FrontEnd | None = None
        self._placement = placement
        self._changed = changed
        self._numbers = itertools.count()
        self._questions: dict[int, WorkerCommand] = {}
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._silent = 0

    @property
    def up(self) -> bool:
        """Whether the worker accepts commands."""
        return self.figures is not None

    @property
    def load(self) -> int:
        """Number of commands that the worker has not answered yet."""
        return len(self._questions)

    def ask(
        self,
        what: SampleCommand | TrainingCommand | CheckCommand | ForgetCommand,
        listener: Listener | None = None,
    ) -> WorkerCommand:
        """Send the worker a command. `listener` gets the messages that precede the answer."""
        question = WorkerCommand(self, next(self._numbers), listener)
        if self.up:
            self._questions[question.number] = question
            self.post(Ask(question.number, what))
        else:
            question.settle(self._lost())
        return question

    def post(self, message: ToWorker) -> None:
        """Queue a message without waiting for it to be sent."""
        self._outbox.put(message)

    async def keep(self) -> None:
        """Keep the worker running until this is cancelled, which ends the worker."""
        delay_s = _FIRST_DELAY_S
        while True:
            started = time.monotonic()
            try:
                await self._run()
            except OSError as error:
                log.error("worker not started", worker=self.spec.number, error=str(error))
            if time.monotonic() - started > _STABLE_S:
                delay_s = _FIRST_DELAY_S
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    async def _run(self) -> None:
        """Start the worker and watch it until it ends. Raises OSError if it cannot be started."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._silent, self._outbox = 0, queue.SimpleQueue()
        starting = asyncio.ensure_future(asyncio.to_thread(self._placement.start, self.spec))
        try:
            self.link = link = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(OSError):
                (await starting).end()
            raise
        log.info("worker started", worker=self.spec.number, place=link.location)
        threading.Thread(target=_receive, args=(link, loop, self._take, ended.set), daemon=True).start()
        threading.Thread(target=_send, args=(link, self._outbox), daemon=True).start()
        try:
            await self._watch(link, ended)
        finally:
            self._outbox.put(None)
            await asyncio.shield(asyncio.to_thread(link.end))
            self.figures = self.link = None
            lost, questions = self._lost(), list(self._questions.values())
            self._questions.clear()
            for question in questions:
                question.settle(lost)
            self._changed(self)
        log.error("worker ended", worker=self.spec.number, place=link.location, unanswered=len(questions))

    async def _watch(self, link: FrontEnd, ended: asyncio.Event) -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
            self._silent += 1
            if self._silent > (SILENT_LOOKS if self.up else START_LOOKS):
                log.error("worker does not answer", worker=self.spec.number, place=link.location)
                return

    def _take(self, report: WorkerReport) -> None:
        self._silent = 0
        new, self.figures = not self.up, report.figures
        if new:
            self._changed(self)
        for message in report.messages:
            question = self._questions.get(message.number)
            if question is None:
                continue
            if isinstance(message, CommandAnswer):
                del self._questions[message.number]
                outcome = message.outcome
                question.settle(outcome.error if isinstance(outcome, Failed) else outcome)
            elif question.listener is not None:
                question.listener(message)

    def _lost(self) -> WorkerLost:
        return WorkerLost(f"worker {self.spec.number} has ended")


def _receive(
    link: FrontEnd, loop: asyncio.AbstractEventLoop, take: Callable[[WorkerReport], None], ended: Callable[[], None]
) -> None:
    with suppress(RuntimeError):  # the event loop is closed
        try:
            while True:
                loop.call_soon_threadsafe(take, link.receive())
        except LinkClosed:
            loop.call_soon_threadsafe(ended)


def _send(link: FrontEnd, outbox: "queue.SimpleQueue[ToWorker | None]") -> None:
    with suppress(LinkClosed):
        while (message := outbox.get()) is not None:
            link.send(message)
