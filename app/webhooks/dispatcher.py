"""Sends the deliveries stored in the database: in order per run and receiver, at least once, with bounded retries.

Any number of dispatchers can work on one database. A claimed delivery is hidden from the others for the visibility
timeout: if a dispatcher dies before it records the attempt, the delivery is sent again with the same id and bytes.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from random import Random
from weakref import WeakValueDictionary

import structlog

from learnloop_service.app import instruments
from learnloop_service.app.db.database import Database
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.webhooks.queue import ClaimedDelivery, DeliveryShare, claim, record_attempt
from learnloop_service.app.webhooks.retries import RETRY_DELAYS_S, retry_delay_s
from learnloop_service.app.webhooks.sender import Sender, SendResult

CONCURRENCY = 128
"""Number of deliveries that one dispatcher sends concurrently. A project gets at most half of them, enough that a few
hanging receivers do not use them all."""
_MAX_RECORDING = 3
"""Number of attempts that are recorded concurrently. It is small, because the API shares the database connections."""
_MAX_RECORDING_PER_PROJECT = 2
"""The same for one project. It is smaller, so that other projects need not wait behind a long queue."""
VISIBILITY_TIMEOUT_S = 60.0
"""How long a claimed delivery is hidden, in seconds. It is longer than an attempt can take."""
_POLL_S = 1.0
_GRACE_S = 2.0

log = structlog.get_logger(__name__)


class Dispatcher:
    """Sends due deliveries. Call `start` before use, `close` after it, and `wake` when a delivery was written."""

    def __init__(
        self,
        database: Database,
        sender: Sender,
        *,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        visibility_timeout_s: float = VISIBILITY_TIMEOUT_S,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self._database = database
        self._sender = sender
        self._retry_delays_s = retry_delays_s
        self._visibility_timeout_s = visibility_timeout_s
        self._concurrency = concurrency
        self._random = Random()
        self._repeated = RepeatedLog(log)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: dict[asyncio.Task[None], DeliveryShare] = {}
        self._recording = asyncio.Semaphore(_MAX_RECORDING)
        self._recording_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By project, kept only while it is in use."""

    def start(self) -> None:
        """Start sending."""
        self._task = asyncio.create_task(self._run(), name="webhook-dispatcher")

    def wake(self) -> None:
        """Signal that there might be something to send."""
        self._wake.set()

    async def close(self, grace_s: float = _GRACE_S) -> None:
        """Stop. Attempts in flight have `grace_s` seconds to finish; everything else waits for the next start."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._sending and grace_s > 0:
            await asyncio.wait(self._sending, timeout=grace_s)
        unfinished = set(self._sending)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        await self._sender.close()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._send_due()
            except DATABASE_DOWN:
                pass  # the API already reports it, and deliveries wait
            except Exception as error:
                self._repeated.error("webhook deliveries could not be claimed, retrying", exc_info=error)
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which in Python 3.11 loses a cancellation that comes together with the event.
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    async def _send_due(self) -> None:
        """Start sending due deliveries while there are free slots. Each one that ends wakes the dispatcher."""
        slots = self._concurrency - len(self._sending)
        if slots == 0:
            return
        in_flight = Counter(self._sending.values())
        last_attempt = len(self._retry_delays_s) + 1
        due = await claim(
            self._database,
            slots,
            in_flight,
            visibility_timeout_s=self._visibility_timeout_s,
            last_attempt=last_attempt,
        )
        for claimed in due:
            task = asyncio.create_task(self._deliver(claimed), name=f"webhook-{claimed.id}")
            self._sending[task] = claimed.group
            task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhook attempt was not recorded", exc_info=error)

    async def _deliver(self, claimed: ClaimedDelivery) -> None:
        result = await self._sender.send(claimed.receiver, claimed.id, claimed.clock, claimed.body)
        delay_s = retry_delay_s(claimed.attempts, result.retry_after_s, self._random, self._retry_delays_s)
        _log(claimed, result, delay_s)
        _count(result, delay_s)
        project = claimed.group.project
        recording_of_project = self._recording_of.setdefault(project, asyncio.Semaphore(_MAX_RECORDING_PER_PROJECT))
        async with asyncio.timeout(self._visibility_timeout_s):  # after this, any dispatcher can claim the delivery
            while True:
                try:
                    async with recording_of_project, self._recording:
                        return await record_attempt(self._database, claimed, result, delay_s)
                except DATABASE_DOWN:
                    self._repeated.warning("webhook attempt could not be saved, retrying", delivery=claimed.id)
                await asyncio.sleep(_POLL_S)


def _count(result: SendResult, delay_s: float | None) -> None:
    is_last = delay_s is None or result.status == 410
    outcome = "delivered" if result.error is None else "failed" if is_last else "retried"
    instruments.WEBHOOK_ATTEMPTS.labels(outcome).inc()
    instruments.WEBHOOK_SECONDS.observe(result.seconds)


def _log(claimed: ClaimedDelivery, result: SendResult, delay_s: float | None) -> None:
    if result.error is None:
        return
    details = {
        "subject": claimed.subject,
        "delivery": claimed.id,
        "endpoint": claimed.receiver.id,
        "error": result.error,
    }
    if delay_s is None or result.status == 410:
        log.warning("webhook delivery failed permanently", **details)
    else:
        log.info("webhook delivery failed, retrying", **details)
