"""A worker: claims runs and evaluations, drives each to its end or hands it over, and shuts down cleanly."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import structlog
from sqlalchemy import URL

from learnloop_service.app import instruments
from learnloop_service.app.aio import freed_memory
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.claims.claims import Claims
from learnloop_service.app.claims.heartbeat import Heartbeat
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.db.tables.claimable import Claimable
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.processes.engine import EngineUnavailable
from learnloop_service.app.runs.budget import RunBudgetReached
from learnloop_service.app.runs.no_signal import NoSignalStop
from learnloop_service.app.runs.store import PendingRequests
from learnloop_service.environment.first_line import first_line
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.training.backends.base import BackendRefused, BackendUnavailable, StepConflict, TrainingFailed
from learnloop_service.training.loop.collector import RolloutsFailed
from learnloop_service.training.loop.evaluation import NothingScored
from learnloop_service.training.loop.learn_loop import CheckpointLost
from learnloop_service.training.types import IterationProgress

_POLL_S = 1.0
_REPORT_S = 0.5
_CLOSE_S = 15.0
_EXPECTED = (
    BackendRefused,
    BackendUnavailable,
    CheckpointLost,
    EngineUnavailable,
    NoSignalStop,
    NothingScored,
    RolloutsFailed,
    StepConflict,
    TrainingFailed,
    ValueError,
)
"""Failures that their message explains, so they are logged without a traceback."""

log = structlog.get_logger(__name__)


class Activity(Protocol):
    """How driven work reports to its runner. Can be called from any thread."""

    def note(self, progress: IterationProgress) -> None:
        """Report progress."""

    def wait(self, reason: str) -> None:
        """Report that the work waits and will retry, which does not count as hanging."""

    def lose(self) -> None:
        """Report that the lease is lost."""


class JobKind(Protocol):
    """One kind of work, runs or evaluations: how it is driven and ended. Called on the service's event loop."""

    @property
    def claims(self) -> Claims[Any]: ...

    @property
    def slots(self) -> int:
        """Maximum number of rows that this worker drives at the same time."""

    @property
    def instruments(self) -> instruments.Work: ...

    async def drive(self, row: Any, lease: Lease[Any], activity: Activity) -> Any:
        """Drive the row to its end and return its result. Raises LeaseLost, RunBudgetReached, and other failures."""

    async def report(
        self, lease: Lease[Any], progress: IterationProgress | None, wait_reason: str | None, driven_s: float
    ) -> PendingRequests:
        """Save a report, and return what the owner has requested. Raises LeaseLost.

        `progress` is None if it has not changed; `driven_s` is the time driven since the last report.
        """

    def pause_reason(self, error: BaseException) -> str | None:
        """Return why the work is paused after the error, or None if it fails."""

    async def suspend(self, lease: Lease[Any], reason: str, shortage: Mapping[str, Any] | None = None) -> None:
        """Pause the work. `shortage` describes the budget that stopped it. Does nothing if the lease is lost."""

    async def finish(self, lease: Lease[Any], status: RunStatus, error: str | None, result: Any) -> None:
        """Save how the work ended. `result` is what `drive` returned, or WorkFailed's. Does nothing if the lease is
        lost."""


class WorkFailed(Exception):
    """Raised by `JobKind.drive` for work that failed, but has a result to save."""

    def __init__(self, reason: str, result: Any) -> None:
        super().__init__(reason)
        self.result = result


class _End(StrEnum):
    """Why the runner ended work before it was done."""

    CANCELLED = "cancelled"
    PAUSED = "paused"
    LOST = "lost"
    STOPPED = "stopped"
    HUNG = "hung"


@dataclass(eq=False)
class _ActiveWork:
    """Work that is being driven. `work` does it; `supervisor` waits for it and saves how it ended."""

    jobs: JobKind
    lease: Lease[Any]
    main_loop: asyncio.AbstractEventLoop
    about: Mapping[str, str]
    """The row's id, for the log."""
    work: asyncio.Task[Any] | None = None
    supervisor: asyncio.Task[None] | None = None
    progress: IterationProgress | None = None
    moved_at: float = field(default_factory=time.monotonic)
    """Time of the last progress, on the monotonic clock."""
    reported_at: float = field(default_factory=time.monotonic)
    wait_reason: str | None = None
    """What the work waits for before it can continue."""
    end: _End | None = None
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the work hangs, so that the supervisor does not wait for its end."""

    def note(self, progress: IterationProgress) -> None:
        if progress.failures is None and self.progress is not None:  # phases without rollouts leave them as they are
            progress = replace(progress, failures=self.progress.failures)
        self.progress, self.wait_reason, self.moved_at = progress, None, time.monotonic()

    def wait(self, reason: str) -> None:
        self.wait_reason, self.moved_at = reason, time.monotonic()

    def lose(self) -> None:
        self.stop_soon(_End.LOST)

    def stop(self, why: _End) -> None:
        """Cancel the work. Only the first reason counts."""
        if self.end is None and self.work is not None:
            self.end = why
            self.work.cancel()
            if why is _End.HUNG:
                self.abandoned.set()

    def stop_soon(self, why: _End) -> None:
        """Call `stop` from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything has ended
            self.main_loop.call_soon_threadsafe(self.stop, why)


class Runner:
    """Drives several kinds of work, each up to its number of slots at the same time."""

    def __init__(self, url: URL, kinds: Sequence[JobKind], *, ttl_s: float, phase_timeout_s: float) -> None:
        """Work without progress for `phase_timeout_s` counts as hung, and fails."""
        self._kinds = kinds
        self._repeated = RepeatedLog(log)
        self._phase_timeout_s = phase_timeout_s
        self._active: dict[str, _ActiveWork] = {}
        self._wake = asyncio.Event()
        self._claimer: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(url, ttl_s, self._leases_to_renew, self._lost)

    def start(self) -> None:
        """Start claiming work."""
        for jobs in self._kinds:
            jobs.instruments.slots.set(jobs.slots)
        self._heartbeat.start()
        self._claimer = asyncio.create_task(self._claim_forever(), name="claimer")

    def wake(self) -> None:
        """Look for work to claim now."""
        self._wake.set()

    def nudge(self, id: str) -> None:
        """Check now for requests by the owner of a run or evaluation, if this worker drives it or can claim it."""
        self.wake()
        if (active := self._active.get(id)) is not None:
            asyncio.get_running_loop().create_task(self._save_progress(active, None)).add_done_callback(_log_failure)

    async def close(self) -> None:
        """Stop all work and hand it over."""
        if self._claimer is not None:
            self._claimer.cancel()
            await asyncio.wait({self._claimer})
        for active in list(self._active.values()):
            active.stop(_End.STOPPED)
        if supervisors := {active.supervisor for active in self._active.values() if active.supervisor is not None}:
            _, stuck = await asyncio.wait(supervisors, timeout=_CLOSE_S)
            for supervisor in stuck:  # the database is down: the leases expire
                supervisor.cancel()
        await asyncio.to_thread(self._heartbeat.close)

    def _leases_to_renew(self) -> list[Lease[Any]]:
        """Return the leases to renew: all except those of hung work. Called on the heartbeat's thread."""
        since = time.monotonic() - self._phase_timeout_s
        actives = list(self._active.values())
        for active in actives:
            if active.moved_at < since:
                active.stop_soon(_End.HUNG)
        return [active.lease for active in actives if active.moved_at >= since]

    def _lost(self, lease: Lease[Any]) -> None:
        if (active := self._active.get(lease.id)) is not None and active.lease == lease:
            active.lose()

    async def _claim_forever(self) -> None:
        while True:
            self._wake.clear()
            try:
                for jobs in self._kinds:
                    while self._has_room(jobs) and (claimed := await jobs.claims.claim()):
                        self._take(jobs, *claimed)
            except DATABASE_DOWN as error:
                self._repeated.warning("database unavailable, nothing is claimed", error=first_line(error))
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the event.
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    def _has_room(self, jobs: JobKind) -> bool:
        return sum(active.jobs is jobs for active in self._active.values()) < jobs.slots

    def _take(self, jobs: JobKind, row: Claimable, lease: Lease[Any]) -> None:
        noun = jobs.claims.noun
        about = {f"{noun}_id": row.id}
        active = self._active[row.id] = _ActiveWork(jobs, lease, asyncio.get_running_loop(), about)
        active.work = asyncio.create_task(jobs.drive(row, lease, active), name=f"{noun}-{row.id}")
        jobs.instruments.claimed.inc()
        jobs.instruments.driven.inc()
        active.supervisor = asyncio.create_task(self._supervise(active), name=f"{noun}-{row.id}-supervisor")
        log.info(f"{noun} claimed", **about, epoch=lease.epoch, claims=row.claims)

    async def _supervise(self, active: _ActiveWork) -> None:
        """Wait until the work ends or hangs, then save how it ended."""
        assert active.work is not None
        reporting = asyncio.create_task(self._report(active))
        abandoned = asyncio.create_task(active.abandoned.wait())
        try:
            await asyncio.wait({active.work, abandoned}, return_when=asyncio.FIRST_COMPLETED)
            reporting.cancel()
            abandoned.cancel()
            await asyncio.wait({reporting, abandoned})
            progress = active.progress
            if progress and progress.failures and progress.failures.failed:  # why rollouts failed outlives the work
                await self._save_progress(active, progress)
            await self._settle(active, active.work)
        finally:
            del self._active[active.lease.id]
            active.jobs.instruments.driven.dec()
            self.wake()
            await asyncio.to_thread(freed_memory.give_back)

    async def _settle(self, active: _ActiveWork, work: asyncio.Task[Any]) -> None:
        match active.end if not work.done() or work.cancelled() else None:
            case _End.LOST:
                _note_loss(active)
            case _End.STOPPED:
                await self._release(active)
            case _End.CANCELLED:
                await self._finish(active, RunStatus.CANCELLED)
            case _End.PAUSED:
                await self._suspend(active, "It was paused on request.")
            case _End.HUNG:
                phase = active.progress.phase if active.progress else "start"
                hung = f"the phase {phase} made no progress for {self._phase_timeout_s:.0f} s"
                await self._finish(active, RunStatus.FAILED, hung)
            case _:
                await self._settle_result(active, work)

    async def _settle_result(self, active: _ActiveWork, work: asyncio.Task[Any]) -> None:
        error = work.exception()
        if error is None:
            await self._finish(active, RunStatus.COMPLETED, result=work.result())
        elif isinstance(error, WorkFailed):
            await self._finish(active, RunStatus.FAILED, str(error), error.result)
        elif isinstance(error, LeaseLost):
            _note_loss(active)
        elif isinstance(error, DATABASE_DOWN):
            await self._release(active)
        elif isinstance(error, RunBudgetReached) and error.exceeded.budget is not None:
            await self._release(active, str(error.exceeded), error.exceeded.figures())
        elif isinstance(error, RunBudgetReached):
            await self._suspend(active, str(error.exceeded), error.exceeded.figures())
        elif (reason := active.jobs.pause_reason(error)) is not None:
            await self._suspend(active, reason)
        else:
            await self._finish(active, RunStatus.FAILED, _reason(active, error))

    async def _release(
        self, active: _ActiveWork, reason: str | None = None, shortage: Mapping[str, Any] | None = None
    ) -> None:
        await retry_while_database_is_down(lambda: active.jobs.claims.release(active.lease, reason, shortage))
        ended = instruments.RELEASED if reason is None else instruments.DAY_BUDGET
        active.jobs.instruments.ended.labels(ended).inc()

    async def _suspend(self, active: _ActiveWork, reason: str, shortage: Mapping[str, Any] | None = None) -> None:
        await retry_while_database_is_down(lambda: active.jobs.suspend(active.lease, reason, shortage))
        active.jobs.instruments.ended.labels(RunStatus.PAUSED).inc()
        log.info(f"{active.jobs.claims.noun} paused", **active.about, reason=reason)

    async def _finish(
        self, active: _ActiveWork, status: RunStatus, error: str | None = None, result: Any = None
    ) -> None:
        """Save how the work ended, retrying for up to an hour while the database is down.

        After that the lease expires. The next worker finds everything saved, and ends the work in the same way.
        """
        await retry_while_database_is_down(lambda: active.jobs.finish(active.lease, status, error, result))
        active.jobs.instruments.ended.labels(status).inc()
        log.info(f"{active.jobs.claims.noun} ended", **active.about, status=status, error=error)

    async def _report(self, active: _ActiveWork) -> None:
        """Save progress and check for the owner's requests, periodically."""
        saved: IterationProgress | None = None
        while True:
            progress = active.progress
            if await self._save_progress(active, progress if progress != saved else None):
                saved = progress
            await asyncio.sleep(_REPORT_S)

    async def _save_progress(self, active: _ActiveWork, progress: IterationProgress | None) -> bool:
        """Save progress and act on the owner's requests. Returns whether the progress was saved."""
        before, active.reported_at = active.reported_at, time.monotonic()
        driven_s = active.reported_at - before
        try:
            pending = await active.jobs.report(active.lease, progress, active.wait_reason, driven_s)
        except DATABASE_DOWN as error:
            active.reported_at -= driven_s
            self._repeated.warning("progress not saved", **active.about, error=first_line(error))
            return False
        except LeaseLost:
            active.stop(_End.LOST)
            return False
        if pending.cancel:
            active.stop(_End.CANCELLED)
        elif pending.pause:
            active.stop(_End.PAUSED)
        return True


def _note_loss(active: _ActiveWork) -> None:
    instruments.LEASES_LOST.inc()
    log.warning(f"{active.jobs.claims.noun} lost to another worker", **active.about, epoch=active.lease.epoch)


def _log_failure(task: asyncio.Task[bool]) -> None:
    """Log a failed nudge. The next report makes up for it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("nudge failed", error=first_line(error))


def _reason(active: _ActiveWork, error: BaseException) -> str:
    """Return the error message to save. Unexpected errors are logged with a traceback."""
    noun = active.jobs.claims.noun
    if isinstance(error, _EXPECTED):
        return str(error)
    if isinstance(error, PluginFault):
        log.error(f"{noun} failed: its plug-in failed", **active.about, exc_info=error)
        return str(error)
    log.error(f"{noun} failed unexpectedly", **active.about, exc_info=error)
    return f"{type(error).__name__}: {error}"
