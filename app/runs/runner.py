"""Owns the run tasks: claims queued runs, drives the learn loop, saves what it yields, cancels, settles, drains."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential
from tenacity.stop import stop_base, stop_never

from app.db import Sessions
from app.documents import put_back
from app.engine_process import EngineUnavailable
from app.errors import DATABASE_DOWN
from app.models import Run
from app.runs.configuration import make_environment, make_judge, model_spec, run_config
from app.runs.own_thread import on_loop, on_own_thread, unbroken
from app.runs.record import IterationRows, iteration_rows, save_iteration
from app.runs.results_files import ResultsFiles
from app.runs.state import RunStatus
from app.runs.store import RunStore
from app.runs.summary import summarise
from environment.base import Environment
from environment.trace import Span, Tracer, span, tracing
from judges.base import Judge, JudgeServices
from training.backends.base import Backend, BackendUnavailable, Policy, StepConflict, TrainingFailed
from training.learn_loop import NothingScored, learn_loop
from training.tries import RolloutsFailed
from training.types import IterationResult, Progress, RunConfig

Connect = Callable[[str], Awaitable[Backend]]
"""Backend name -> a connected backend for the caller's event loop; waits for the engine where it needs one."""


MakeServices = Callable[[Run, Environment], JudgeServices]
"""What the judge of a run may use; called and used on the run's own event loop."""


class LearnLoop(Protocol):
    """The signature of `training.learn_loop.learn_loop`."""

    def __call__(
        self,
        config: RunConfig,
        environment: Environment,
        judge: Judge,
        policy: Policy,
        *,
        progress: Callable[[Progress], None],
    ) -> AsyncGenerator[IterationResult, None]: ...


_Result = TypeVar("_Result")
_POLL_S = 1.0
_BEAT_S = 0.5
_DATABASE_PATIENCE_S = 300.0
_CLOSE_S = 15.0
_EXPECTED = (
    EngineUnavailable,
    BackendUnavailable,
    TrainingFailed,
    StepConflict,
    RolloutsFailed,
    NothingScored,
    ValueError,
)
"""Failures whose message says all: no traceback in the log."""

log = structlog.get_logger(__name__)


@dataclass
class _Active:
    """A run under way: `work` drives the learn loop, `guard` sees to its end."""

    work: asyncio.Task[None]
    guard: asyncio.Task[None] | None = None
    progress: Progress | None = None
    cancel_requested: bool = False


class Runner:
    """Drives up to `max_concurrent` runs at once."""

    def __init__(
        self,
        sessions: Sessions,
        connect: Connect,
        *,
        data_dir: Path,
        max_concurrent: int,
        frontend_url: str | None,
        judge_services: MakeServices,
        on_saved: Callable[[], None],
        tracer: Tracer | None = None,
        learn: LearnLoop = learn_loop,
    ) -> None:
        """`on_saved` is called after each saved iteration; the tracer receives the spans of all runs."""
        self._sessions = sessions
        self._store = RunStore(sessions)
        self._results = ResultsFiles(sessions, data_dir)
        self._connect = connect
        self._data_dir = data_dir
        self._owner = str(data_dir)
        self._max_concurrent = max_concurrent
        self._frontend_url = frontend_url
        self._judge_services = judge_services
        self._on_saved = on_saved
        self._tracer = tracer
        self._learn_loop = learn
        self._active: dict[str, _Active] = {}
        self._wake = asyncio.Event()
        self._claimer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Settle what an earlier service left, then claim for ever."""
        self._claimer = asyncio.create_task(self._claim_for_ever(), name="run-claimer")

    def wake(self) -> None:
        """There may be something to claim."""
        self._wake.set()

    def cancel(self, run_id: str) -> None:
        """Stop the run's work, if it is ours. Its row becomes `cancelled` when the work has ended."""
        active = self._active.get(run_id)
        if active is not None and not active.cancel_requested:
            active.cancel_requested = True
            active.work.cancel()

    async def close(self) -> None:
        """Stop all work and settle its runs."""
        if self._claimer is not None:
            self._claimer.cancel()
            await asyncio.wait({self._claimer})
        for active in self._active.values():
            active.work.cancel()
        if guards := {active.guard for active in self._active.values() if active.guard is not None}:
            _, stuck = await asyncio.wait(guards, timeout=_CLOSE_S)
            for guard in stuck:  # the database is away
                guard.cancel()
        with contextlib.suppress(*DATABASE_DOWN):  # else the next start does it
            await self._store.settle_interrupted(self._owner)

    async def _claim_for_ever(self) -> None:
        left = await _patiently(lambda: self._store.settle_interrupted(self._owner), stop_never)
        if left:
            log.warning("settled the runs that an earlier service left", run_ids=left)
        while True:
            self._wake.clear()
            try:
                while len(self._active) < self._max_concurrent and (run := await self._store.claim(self._owner)):
                    self._take(run)
            except DATABASE_DOWN as error:
                log.warning("the database does not answer, no run is claimed", error=_first_line(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _POLL_S)

    def _take(self, run: Run) -> None:
        active = _Active(asyncio.create_task(self._work(run), name=f"run-{run.id}"))
        self._active[run.id] = active
        active.guard = asyncio.create_task(self._see_to_its_end(run, active), name=f"run-{run.id}-guard")

    async def _see_to_its_end(self, run: Run, active: _Active) -> None:
        """Wait for the work, then save how it ended. A run that a stopping service interrupts stays `running`."""
        beat = asyncio.create_task(self._beat_for_ever(run.id, active))
        await asyncio.wait({active.work})
        beat.cancel()
        await asyncio.wait({beat})
        try:
            if active.work.cancelled():
                if active.cancel_requested:
                    await self._finish(run, RunStatus.CANCELLED)
            elif (error := active.work.exception()) is not None:
                await self._finish(run, RunStatus.FAILED, _reason(error))
            else:
                await self._finish(run, RunStatus.COMPLETED)
        finally:
            del self._active[run.id]
            self.wake()

    async def _finish(self, run: Run, status: RunStatus, error: str | None = None) -> None:
        """For as long as the service lives: a database that is away must not change how a run ended."""

        async def finish() -> None:
            completed = status is RunStatus.COMPLETED
            await self._results.write(run.id, completed=completed)
            summary = await summarise(self._sessions, run.id) if completed else None
            await self._store.finish(run.id, status, error=error, summary=summary)

        await _patiently(finish, stop_never)
        log.info("run ended", run_id=run.id, status=status, error=error)

    async def _work(self, run: Run) -> None:
        """The learn loop with all that it needs, on a thread of its own; saving is done at home."""
        home = asyncio.get_running_loop()
        await on_own_thread(lambda: self._learn(run, home), name=f"run-{run.id}")

    async def _learn(self, run: Run, home: asyncio.AbstractEventLoop) -> None:
        structlog.contextvars.bind_contextvars(run_id=run.id)
        log.info("run started", environment=run.environment, iterations=run.iterations_total)
        async with AsyncExitStack() as stack:
            stack.enter_context(tracing(self._tracer))  # here: a thread begins without its parent's context
            stack.enter_context(_run_span(run))
            environment = stack.enter_context(closing(await self._environment(run, home)))
            backend = await self._connect(run.backend)
            stack.push_async_callback(backend.close)
            results = self._learn_loop(
                run_config(run.request),
                environment,
                make_judge(run.request, self._judge_services(run, environment)),
                await backend.register(model_spec(run)),
                progress=lambda progress: self._note(run.id, progress),
            )
            await stack.enter_async_context(aclosing(results))
            async for result in results:
                # A commit that is half done is neither saved nor not saved: it goes to its end.
                rows = iteration_rows(run, result, self._frontend_url)
                await unbroken(on_loop(home, self._save(run, rows)))

    async def _environment(self, run: Run, home: asyncio.AbstractEventLoop) -> Environment:
        """The run's environment, with the documents that its request refers to."""
        whole = _patiently(lambda: put_back(self._sessions, run.request), stop_after_delay(_DATABASE_PATIENCE_S))
        return make_environment(await on_loop(home, whole), self._data_dir)

    async def _save(self, run: Run, rows: IterationRows) -> None:
        await _patiently(lambda: save_iteration(self._sessions, run.id, rows), stop_after_delay(_DATABASE_PATIENCE_S))
        result = rows.result
        log.info(
            "iteration saved",
            run_id=run.id,
            iteration=result.iteration,
            step=result.step,
            reward=result.rewards.mean,
            success=result.success,
            seconds=round(result.timing.total_s, 2),
        )
        self._on_saved()
        await _patiently(lambda: self._results.write(run.id), stop_after_delay(_DATABASE_PATIENCE_S))

    def _note(self, run_id: str, progress: Progress) -> None:
        if (active := self._active.get(run_id)) is not None:
            active.progress = progress

    async def _beat_for_ever(self, run_id: str, active: _Active) -> None:
        """Save the progress, and hear of a cancellation that another process accepted."""
        saved: Progress | None = None
        while True:
            try:
                progress = active.progress
                if await self._store.beat(run_id, progress if progress != saved else None):
                    self.cancel(run_id)
                saved = progress
            except DATABASE_DOWN as error:
                log.warning("progress not saved", run_id=run_id, error=_first_line(error))
            await asyncio.sleep(_BEAT_S)


async def _patiently(act: Callable[[], Awaitable[_Result]], stop: stop_base) -> _Result:
    """The result of `act`, tried again while the database is away."""
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(DATABASE_DOWN),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        stop=stop,
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            return await act()
    raise AssertionError("reraise=True leaves no other way out")


def _run_span(run: Run) -> AbstractContextManager[Span]:
    """Around all spans of a run."""
    named = ("environment", "judge")
    return span(
        "learn_loop",
        run_id=run.id,
        model=asdict(model_spec(run)),
        **{name: run.request[name] for name in named},
        config={name: value for name, value in run.request.items() if name not in (*named, "model")},
    )


def _reason(error: BaseException) -> str:
    """What the run's row says of its failure; the unexpected goes to the log with its traceback."""
    if isinstance(error, DATABASE_DOWN):
        return f"the database did not answer for {_DATABASE_PATIENCE_S:.0f} s ({_first_line(error)})"
    if isinstance(error, _EXPECTED):
        return str(error)
    log.error("run failed unexpectedly", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
