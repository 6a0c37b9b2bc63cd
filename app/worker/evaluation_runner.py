"""Claims evaluations, one at a time, drives each to its end or hands it over, and stops in good order."""

import asyncio
import contextlib

import structlog

from app.aio.retry import retry_while_database_is_down
from app.db.tables import EvaluationJob
from app.domain.evaluation_state import EvaluationStatus
from app.errors import DATABASE_DOWN
from app.evaluations.store import EvaluationLease, EvaluationLost, EvaluationStore
from app.logs import RepeatedLog
from app.processes.engine import EngineUnavailable
from app.runs.budget import RunBudgetReached
from app.worker.evaluation_driver import EvaluationDriver, Waiting
from app.worker.evaluation_publisher import EvaluationPublisher
from environment.plugins import PluginFault
from training.backends.base import BackendRefused, BackendUnavailable

_POLL_S = 1.0
_CLOSE_S = 15.0
_EXPECTED = (EngineUnavailable, BackendUnavailable, BackendRefused, PluginFault, ValueError)
"""Failures that their message explains: no traceback in the log."""

log = structlog.get_logger(__name__)


class EvaluationRunner:
    """Drives evaluations for one worker."""

    def __init__(
        self,
        store: EvaluationStore,
        driver: EvaluationDriver,
        publisher: EvaluationPublisher,
        *,
        worker: str,
        engine: str,
        ttl_s: float,
    ) -> None:
        """`engine` is the name of the engine that this worker can reach; leases last `ttl_s` seconds."""
        self._store = store
        self._driver = driver
        self._publisher = publisher
        self._worker = worker
        self._engine = engine
        self._ttl_s = ttl_s
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to claim evaluations."""
        self._task = asyncio.create_task(self._claim_forever(), name="evaluation-claimer")
        self._publisher.start()

    def wake(self) -> None:
        """Look for evaluations to claim now, or for what the owner of the current one has asked for."""
        self._wake.set()

    async def close(self) -> None:
        """Stop all work and hand the evaluation over."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
            await self._publisher.close()

    async def _claim_forever(self) -> None:
        repeated = RepeatedLog(log)
        while True:
            self._wake.clear()
            try:
                if (claimed := await self._store.claim(self._worker, self._ttl_s, self._engine)) is not None:
                    await self._drive(*claimed)
                    continue
            except DATABASE_DOWN as error:
                repeated.warning("database unavailable, no evaluation is claimed", error=str(error).splitlines()[0])
            await self._pause(_POLL_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _drive(self, job: EvaluationJob, lease: EvaluationLease) -> None:
        log.info("evaluation claimed", evaluation_id=job.id, epoch=lease.epoch)
        waiting = Waiting()
        work = asyncio.create_task(self._driver.drive(job, lease, waiting), name=f"evaluation-{job.id}")
        try:
            ended = await self._watch(lease, work, waiting)
        except asyncio.CancelledError:
            await _stop(work)
            with contextlib.suppress(*DATABASE_DOWN):  # else the lease lapses
                await self._store.release(lease)
            raise
        if ended is EvaluationStatus.CANCELLED:
            await self._finish(lease, EvaluationStatus.CANCELLED)
        elif ended is not None:
            await self._settle(lease, work)

    async def _watch(
        self, lease: EvaluationLease, work: asyncio.Task[object], waiting: Waiting
    ) -> EvaluationStatus | None:
        """Renew the lease until the work ends (RUNNING), its owner cancels it, or the lease is lost (None)."""
        repeated = RepeatedLog(log)
        loop, renewed = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        while not work.done():
            self._wake.clear()
            woken = asyncio.create_task(self._wake.wait())
            await asyncio.wait(
                {work, woken}, timeout=min(_POLL_S, self._ttl_s / 3), return_when=asyncio.FIRST_COMPLETED
            )
            woken.cancel()
            try:
                now = loop.time()
                cancelled = await self._store.renew(lease, self._ttl_s, waiting.reason, now - renewed)
                renewed = now
            except EvaluationLost:
                await _stop(work)
                return None
            except DATABASE_DOWN as error:
                repeated.warning("lease of an evaluation not renewed", error=str(error).splitlines()[0])
                if loop.time() - renewed > 0.8 * self._ttl_s:  # before another worker may begin
                    await _stop(work)
                    return None
                continue
            if cancelled and not work.done():
                await _stop(work)
                return EvaluationStatus.CANCELLED
        return EvaluationStatus.RUNNING

    async def _settle(self, lease: EvaluationLease, work: asyncio.Task[dict[str, object]]) -> None:
        error = work.exception()
        if isinstance(error, EvaluationLost):
            log.warning("evaluation lost to another worker", evaluation_id=lease.evaluation_id, epoch=lease.epoch)
        elif error is None:
            report = work.result()
            publish = self._publisher.configured
            await retry_while_database_is_down(lambda: self._store.complete(lease, report, publish=publish))
            self._publisher.wake()
            log.info("evaluation ended", evaluation_id=lease.evaluation_id, status=EvaluationStatus.COMPLETED)
        elif isinstance(error, RunBudgetReached):
            exceeded = error.exceeded
            await retry_while_database_is_down(lambda: self._store.pause(lease, str(exceeded), exceeded.figures()))
            log.info("evaluation paused: its budget is reached", evaluation_id=lease.evaluation_id)
        elif isinstance(error, _EXPECTED):
            await self._finish(lease, EvaluationStatus.FAILED, str(error))
        else:
            log.error("evaluation failed unexpectedly", evaluation_id=lease.evaluation_id, exc_info=error)
            await self._finish(lease, EvaluationStatus.FAILED, f"{type(error).__name__}: {error}")

    async def _finish(self, lease: EvaluationLease, status: EvaluationStatus, error: str | None = None) -> None:
        await retry_while_database_is_down(lambda: self._store.finish(lease, status, error=error))
        log.info("evaluation ended", evaluation_id=lease.evaluation_id, status=status, error=error)


async def _stop(work: asyncio.Task[object]) -> None:
    work.cancel()
    await asyncio.wait({work})
    if not work.cancelled():
        work.exception()  # seen: that we stopped it is what counts
