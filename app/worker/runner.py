"""A worker: claims runs, drives each to its end or hands it over, and stops in good order."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import URL

from app import instruments
from app.aio.retry import retry_while_database_is_down
from app.db.session import Sessions
from app.db.tables import Run
from app.domain.run_state import RunStatus
from app.errors import DATABASE_DOWN
from app.logs import RepeatedLog
from app.processes.engine import EngineUnavailable
from app.results.summary import summarise
from app.runs.budget import RunBudgetReached
from app.runs.leases import Lease, LeaseLost, Leases
from app.runs.no_signal import NoSignalStop
from app.runs.store import RunStore
from app.worker.drive import Driver
from app.worker.heartbeat import Heartbeat
from environment.plugins import PluginFault
from training.backends.base import BackendUnavailable, StepConflict, TrainingFailed
from training.collector import RolloutsFailed
from training.learn_loop import CheckpointLost, NothingScored
from training.types import Progress

_POLL_S = 1.0
_HEARTBEAT_S = 0.5
_CLOSE_S = 15.0
_EXPECTED = (CheckpointLost, TrainingFailed, StepConflict, RolloutsFailed, NothingScored, NoSignalStop, ValueError)
"""Failures that their message explains: no traceback in the log."""

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
    """A run that we drive: `work` does so, `supervisor` waits for it and saves how it ended."""

    run: Run
    lease: Lease
    main_loop: asyncio.AbstractEventLoop
    work: asyncio.Task[None] | None = None
    supervisor: asyncio.Task[None] | None = None
    progress: Progress | None = None
    moved_at: float = field(default_factory=time.monotonic)
    """When it last made progress, on the monotonic clock."""
    wait_reason: str | None = None
    """What it waits for before it can continue."""
    end: _End | None = None
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if the work hangs, and its end is not waited for."""

    def note(self, progress: Progress) -> None:
        """The run made progress. Called from any thread."""
        self.progress, self.wait_reason, self.moved_at = progress, None, time.monotonic()

    def wait(self, reason: str) -> None:
        """The run waits, which is not a hang: somebody retries. Called from any thread."""
        self.wait_reason, self.moved_at = reason, time.monotonic()

    def stop(self, why: _End) -> None:
        """End the work; the first reason counts."""
        if self.end is None and self.work is not None:
            self.end = why
            self.work.cancel()
            if why is _End.HUNG:
                self.abandoned.set()

    def stop_soon(self, why: _End) -> None:
        """Like `stop`, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything has ended
            self.main_loop.call_soon_threadsafe(self.stop, why)


class Runner:
    """Drives up to `max_concurrent` runs at the same time."""

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
        """`phase_timeout_s`: a run without any progress for that long hangs, and fails."""
        self._store = RunStore(sessions)
        self._repeated = RepeatedLog(log)
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
        """Start to claim runs."""
        instruments.RUN_SLOTS.set(self._max_concurrent)
        self._heartbeat.start()
        self._claimer = asyncio.create_task(self._claim_forever(), name="run-claimer")

    def wake(self) -> None:
        """Look for runs to claim now: there may be a new one."""
        self._wake.set()

    def nudge(self, run_id: str) -> None:
        """The run's owner has asked for something: look for it now, if we drive the run or can claim it."""
        self.wake()
        if (active := self._active.get(run_id)) is not None:
            asyncio.get_running_loop().create_task(self._save_progress(active, None)).add_done_callback(_log_failure)

    async def close(self) -> None:
        """Stop all work and hand the runs over."""
        if self._claimer is not None:
            self._claimer.cancel()
            await asyncio.wait({self._claimer})
        for active in list(self._active.values()):
            active.stop(_End.STOPPED)
        if supervisors := {active.supervisor for active in self._active.values() if active.supervisor is not None}:
            _, stuck = await asyncio.wait(supervisors, timeout=_CLOSE_S)
            for supervisor in stuck:  # the database is down: the leases lapse
                supervisor.cancel()
        await asyncio.to_thread(self._heartbeat.close)

    def _alive(self) -> list[Lease]:
        """The leases to renew: all but those of runs that hang. Called on the heartbeat's thread."""
        since = time.monotonic() - self._phase_timeout_s
        actives = list(self._active.values())
        for active in actives:
            if active.moved_at < since:
                active.stop_soon(_End.HUNG)
        return [active.lease for active in actives if active.moved_at >= since]

    def _lost(self, lease: Lease) -> None:
        if (active := self._active.get(lease.run_id)) is not None and active.lease == lease:
            active.stop_soon(_End.LOST)

    async def _claim_forever(self) -> None:
        while True:
            self._wake.clear()
            try:
                while len(self._active) < self._max_concurrent and (claimed := await self._leases.claim()):
                    self._take(*claimed)
            except DATABASE_DOWN as error:
                self._repeated.warning("database unavailable, no run is claimed", error=_first_line(error))
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    def _take(self, run: Run, lease: Lease) -> None:
        active = _Active(run, lease, asyncio.get_running_loop())
        work = self._driver.drive(run, lease, active.note, active.wait, lambda: active.stop_soon(_End.LOST))
        active.work = asyncio.create_task(work, name=f"run-{run.id}")
        self._active[run.id] = active
        instruments.RUNS_CLAIMED.inc()
        instruments.RUNS_DRIVEN.inc()
        active.supervisor = asyncio.create_task(self._supervise(active), name=f"run-{run.id}-supervisor")
        log.info("run claimed", run_id=run.id, epoch=lease.epoch, claims=run.claims)

    async def _supervise(self, active: _Active) -> None:
        """Wait until the work ends or hangs; then save how it ended."""
        assert active.work is not None
        reporting = asyncio.create_task(self._report(active))
        abandoned = asyncio.create_task(active.abandoned.wait())
        try:
            await asyncio.wait({active.work, abandoned}, return_when=asyncio.FIRST_COMPLETED)
            reporting.cancel()
            abandoned.cancel()
            await asyncio.wait({reporting, abandoned})
            await self._settle(active, active.work)
        finally:
            del self._active[active.run.id]
            instruments.RUNS_DRIVEN.dec()
            self.wake()

    async def _settle(self, active: _Active, work: asyncio.Task[None]) -> None:
        lease = active.lease
        match active.end if not work.done() or work.cancelled() else None:
            case _End.LOST:
                _note_loss(lease)
            case _End.STOPPED:
                await self._release(lease)
            case _End.CANCELLED:
                await self._finish(lease, RunStatus.CANCELLED)
            case _End.PAUSED:
                await self._suspend(lease, "asked for by its owner")
            case _End.HUNG:
                phase = active.progress.phase if active.progress else "start"
                hung = f"the phase {phase} made no progress for {self._phase_timeout_s:.0f} s"
                await self._finish(lease, RunStatus.FAILED, hung)
            case _:
                await self._settle_result(lease, work)

    async def _settle_result(self, lease: Lease, work: asyncio.Task[None]) -> None:
        error = work.exception()
        if isinstance(error, LeaseLost):
            _note_loss(lease)
        elif isinstance(error, DATABASE_DOWN):
            await self._release(lease)
        elif isinstance(error, RunBudgetReached):
            exceeded = error.exceeded
            await self._suspend(lease, str(exceeded), exceeded.figures())
            log.info("run paused: its budget is reached", run_id=lease.run_id, **exceeded.figures())
        elif isinstance(error, NoSignalStop) and error.rule.action == "pause":
            await self._suspend(lease, f"{error}; resume the run to go on all the same")
            log.warning("run paused: it learns nothing", run_id=lease.run_id, reason=str(error))
        elif isinstance(error, EngineUnavailable | BackendUnavailable):
            await self._suspend(lease, f"{error}; resume the run when that is fixed")
            log.warning("run paused: its backend is unavailable", run_id=lease.run_id, error=str(error))
        elif error is not None:
            await self._finish(lease, RunStatus.FAILED, _reason(error))
        else:
            await self._finish(lease, RunStatus.COMPLETED)

    async def _release(self, lease: Lease) -> None:
        await retry_while_database_is_down(lambda: self._leases.release(lease))
        instruments.RUNS_ENDED.labels(instruments.RELEASED).inc()

    async def _suspend(self, lease: Lease, reason: str, shortage: Mapping[str, Any] | None = None) -> None:
        await retry_while_database_is_down(lambda: self._store.suspend(lease, reason, shortage))
        instruments.RUNS_ENDED.labels(RunStatus.PAUSED).inc()

    async def _finish(self, lease: Lease, status: RunStatus, error: str | None = None) -> None:
        """Save how a run ended, even if the database is down for up to an hour. After that its lease lapses, and the
        next worker finds everything saved and ends the run in the same way."""

        async def finish() -> None:
            completed = status is RunStatus.COMPLETED
            await self._driver.results.write(lease.run_id, completed=completed)
            summary = await summarise(self._sessions, lease.run_id) if completed else None
            await self._store.finish(lease, status, error=error, summary=summary)

        await retry_while_database_is_down(finish)
        instruments.RUNS_ENDED.labels(status).inc()
        log.info("run ended", run_id=lease.run_id, status=status, error=error)

    async def _report(self, active: _Active) -> None:
        """Save the progress and look for requests of the run's owner, again and again."""
        saved: Progress | None = None
        while True:
            progress = active.progress
            if await self._save_progress(active, progress if progress != saved else None):
                saved = progress
            await asyncio.sleep(_HEARTBEAT_S)

    async def _save_progress(self, active: _Active, progress: Progress | None) -> bool:
        """Returns whether the progress was saved, and does what the run's owner has asked for."""
        try:
            pending = await self._store.heartbeat(active.lease, progress, active.wait_reason)
        except DATABASE_DOWN as error:
            self._repeated.warning("progress not saved", run_id=active.run.id, error=_first_line(error))
            return False
        except LeaseLost:
            active.stop(_End.LOST)
            return False
        if pending.cancel:
            active.stop(_End.CANCELLED)
        elif pending.pause:
            active.stop(_End.PAUSED)
        return True


def _note_loss(lease: Lease) -> None:
    instruments.LEASES_LOST.inc()
    log.warning("run lost to another worker", run_id=lease.run_id, epoch=lease.epoch)


def _log_failure(task: asyncio.Task[bool]) -> None:
    """The next report makes up for a nudge that failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("nudge failed", error=_first_line(error))


def _reason(error: BaseException) -> str:
    """The failure as saved with the run. Unexpected errors are logged with their traceback."""
    if isinstance(error, _EXPECTED):
        return str(error)
    if isinstance(error, PluginFault):
        log.error("run failed: its plug-in failed", exc_info=error)
        return str(error)
    log.error("run failed unexpectedly", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
