"""A worker: claims runs, sees each to its end or hands it over, and stops in good order."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from enum import StrEnum

import structlog
from sqlalchemy import URL

from app.aio.retry import retry_while_database_is_down
from app.db.session import Sessions
from app.db.tables import Run
from app.domain.run_state import RunStatus
from app.errors import DATABASE_DOWN
from app.processes.engine import EngineUnavailable
from app.results.summary import summarise
from app.runs.budget import RunBudgetReached
from app.runs.leases import Lease, LeaseLost, Leases
from app.runs.store import RunStore
from app.worker.drive import Driver
from app.worker.heartbeat import Heartbeat
from training.backends.base import BackendUnavailable, StepConflict, TrainingFailed
from training.collector import RolloutsFailed
from training.learn_loop import CheckpointLost, NothingScored
from training.types import Progress

_POLL_S = 1.0
_BEAT_S = 0.5
_CLOSE_S = 15.0
_EXPECTED = (CheckpointLost, TrainingFailed, StepConflict, RolloutsFailed, NothingScored, ValueError)
"""Failures whose message says all: no traceback in the log."""

log = structlog.get_logger(__name__)


class _End(StrEnum):
    """Why we ended the work on a run before it was done."""

    CANCELLED = "cancelled"
    PAUSED = "paused"
    LOST = "lost"
    STOPPED = "stopped"
    HUNG = "hung"


@dataclass(eq=False)
class _Active:
    """A run under way: `work` drives it, `guard` sees to its end."""

    run: Run
    lease: Lease
    home: asyncio.AbstractEventLoop
    work: asyncio.Task[None] | None = None
    guard: asyncio.Task[None] | None = None
    progress: Progress | None = None
    moved_at: float = field(default_factory=time.monotonic)
    """When it last made progress, on the monotonic clock."""
    waits: str | None = None
    """What it waits for before it can go on."""
    end: _End | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if the work hangs and is not waited for."""

    def note(self, progress: Progress) -> None:
        """From any thread."""
        self.progress, self.waits, self.moved_at = progress, None, time.monotonic()

    def wait(self, reason: str) -> None:
        """From any thread. It is no hanging: it is seen to, and ends by itself."""
        self.waits, self.moved_at = reason, time.monotonic()

    def stop(self, why: _End) -> None:
        """End the work; the first reason counts."""
        if self.end is None and self.work is not None:
            self.end = why
            self.work.cancel()
            if why is _End.HUNG:
                self.gone.set()

    def stop_soon(self, why: _End) -> None:
        """As `stop`, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything has ended
            self.home.call_soon_threadsafe(self.stop, why)


class Runner:
    """Drives up to `max_concurrent` runs at once."""

    def __init__(
        self,
        sessions: Sessions,
        url: URL,
        leases: Leases,
        driver: Driver,
        *,
        max_concurrent: int,
        phase_timeout_s: float,
    ) -> None:
        """`phase_timeout_s`: a run without any progress for so long is hung, and fails."""
        self._store = RunStore(sessions)
        self._sessions = sessions
        self._leases = leases
        self._driver = driver
        self._max_concurrent = max_concurrent
        self._phase_timeout_s = phase_timeout_s
        self._active: dict[str, _Active] = {}
        self._wake = asyncio.Event()
        self._claimer: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(url, leases.ttl_s, self._alive, self._lost)

    def start(self) -> None:
        """Claim for ever."""
        self._heartbeat.start()
        self._claimer = asyncio.create_task(self._claim_for_ever(), name="run-claimer")

    def wake(self) -> None:
        """There may be something to claim."""
        self._wake.set()

    def nudge(self, run_id: str) -> None:
        """Its owner asked for something: see now, if the run is ours or free."""
        self.wake()
        if (active := self._active.get(run_id)) is not None:
            asyncio.get_running_loop().create_task(self._beat(active, None)).add_done_callback(_seen)

    async def close(self) -> None:
        """Stop all work and hand its runs over."""
        if self._claimer is not None:
            self._claimer.cancel()
            await asyncio.wait({self._claimer})
        for active in list(self._active.values()):
            active.stop(_End.STOPPED)
        if guards := {active.guard for active in self._active.values() if active.guard is not None}:
            _, stuck = await asyncio.wait(guards, timeout=_CLOSE_S)
            for guard in stuck:  # the database is away: the leases lapse
                guard.cancel()
        await asyncio.to_thread(self._heartbeat.close)

    def _alive(self) -> list[Lease]:
        """The leases to renew, asked by the heartbeat's thread: not those of runs that hang."""
        since = time.monotonic() - self._phase_timeout_s
        actives = list(self._active.values())
        for active in actives:
            if active.moved_at < since:
                active.stop_soon(_End.HUNG)
        return [active.lease for active in actives if active.moved_at >= since]

    def _lost(self, lease: Lease) -> None:
        if (active := self._active.get(lease.run_id)) is not None and active.lease == lease:
            active.stop_soon(_End.LOST)

    async def _claim_for_ever(self) -> None:
        while True:
            self._wake.clear()
            try:
                while len(self._active) < self._max_concurrent and (claimed := await self._leases.claim()):
                    self._take(*claimed)
            except DATABASE_DOWN as error:
                log.warning("the database does not answer, no run is claimed", error=_first_line(error))
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    def _take(self, run: Run, lease: Lease) -> None:
        active = _Active(run, lease, asyncio.get_running_loop())
        work = self._driver.drive(run, lease, active.note, active.wait, lambda: active.stop_soon(_End.LOST))
        active.work = asyncio.create_task(work, name=f"run-{run.id}")
        self._active[run.id] = active
        active.guard = asyncio.create_task(self._see_to_its_end(active), name=f"run-{run.id}-guard")
        log.info("run claimed", run_id=run.id, epoch=lease.epoch, attempt=run.attempts)

    async def _see_to_its_end(self, active: _Active) -> None:
        """Wait for the work, or for the news that it hangs; then save how it ended."""
        assert active.work is not None
        beat = asyncio.create_task(self._beat_for_ever(active))
        gone = asyncio.create_task(active.gone.wait())
        try:
            await asyncio.wait({active.work, gone}, return_when=asyncio.FIRST_COMPLETED)
            beat.cancel()
            gone.cancel()
            await asyncio.wait({beat, gone})
            await self._settle(active, active.work)
        finally:
            del self._active[active.run.id]
            self.wake()

    async def _settle(self, active: _Active, work: asyncio.Task[None]) -> None:
        lease = active.lease
        match active.end if not work.done() or work.cancelled() else None:
            case _End.LOST:
                log.warning("run lost to another worker", run_id=lease.run_id, epoch=lease.epoch)
            case _End.STOPPED:
                await retry_while_database_is_down(lambda: self._leases.release(lease))
            case _End.CANCELLED:
                await self._finish(lease, RunStatus.CANCELLED)
            case _End.PAUSED:
                await retry_while_database_is_down(lambda: self._store.paused(lease, "asked for by its owner"))
            case _End.HUNG:
                phase = active.progress.phase if active.progress else "start"
                hung = f"the phase {phase} made no progress for {self._phase_timeout_s:.0f} s"
                await self._finish(lease, RunStatus.FAILED, hung)
            case _:
                await self._settle_result(lease, work)

    async def _settle_result(self, lease: Lease, work: asyncio.Task[None]) -> None:
        error = work.exception()
        if isinstance(error, LeaseLost):
            log.warning("run lost to another worker", run_id=lease.run_id, epoch=lease.epoch)
        elif isinstance(error, DATABASE_DOWN):
            await retry_while_database_is_down(lambda: self._leases.release(lease))
        elif isinstance(error, RunBudgetReached):
            shortage = error.shortage
            await retry_while_database_is_down(lambda: self._store.paused(lease, str(shortage), shortage.figures()))
            log.info("run paused: its budget is reached", run_id=lease.run_id, **shortage.figures())
        elif isinstance(error, EngineUnavailable | BackendUnavailable):
            await retry_while_database_is_down(
                lambda: self._store.paused(lease, f"{error}; resume it when that is mended")
            )
            log.warning("run paused: its backend is away", run_id=lease.run_id, error=str(error))
        elif error is not None:
            await self._finish(lease, RunStatus.FAILED, _reason(error))
        else:
            await self._finish(lease, RunStatus.COMPLETED)

    async def _finish(self, lease: Lease, status: RunStatus, error: str | None = None) -> None:
        """Save how a run ended, be the database away for up to an hour. After that its lease lapses, and whoever claims
        it next goes on from what is saved: where everything is, to the same end at once."""

        async def finish() -> None:
            completed = status is RunStatus.COMPLETED
            await self._driver.results.write(lease.run_id, completed=completed)
            summary = await summarise(self._sessions, lease.run_id) if completed else None
            await self._store.finish(lease, status, error=error, summary=summary)

        await retry_while_database_is_down(finish)
        log.info("run ended", run_id=lease.run_id, status=status, error=error)

    async def _beat_for_ever(self, active: _Active) -> None:
        """Save the progress, and hear what the run's owner wishes."""
        saved: Progress | None = None
        while True:
            progress = active.progress
            if await self._beat(active, progress if progress != saved else None):
                saved = progress
            await asyncio.sleep(_BEAT_S)

    async def _beat(self, active: _Active, progress: Progress | None) -> bool:
        """Whether the progress was saved."""
        try:
            wishes = await self._store.beat(active.lease, progress, active.waits)
        except DATABASE_DOWN as error:
            log.warning("progress not saved", run_id=active.run.id, error=_first_line(error))
            return False
        except LeaseLost:
            active.stop(_End.LOST)
            return False
        if wishes.cancel:
            active.stop(_End.CANCELLED)
        elif wishes.pause:
            active.stop(_End.PAUSED)
        return True


def _seen(task: asyncio.Task[bool]) -> None:
    """A nudge that failed is made up for by the next beat."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("nudge failed", error=_first_line(error))


def _reason(error: BaseException) -> str:
    """What the run's row says of its failure; the unexpected goes to the log with its traceback."""
    if isinstance(error, _EXPECTED):
        return str(error)
    log.error("run failed unexpectedly", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
