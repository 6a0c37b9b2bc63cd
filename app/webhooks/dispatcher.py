"""Sends the deliveries that lie in the database: in order per run and receiver, at least once, with bounded retries.

Any number of dispatchers may work on one database. A delivery is hidden for a while when it is taken, so that a
service that dies between sending and noting it sends it again, under the same id and with the same bytes.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from random import Random

import structlog

from app.db.session import Sessions
from app.errors import DATABASE_DOWN
from app.webhooks.queue import Taken, note, take
from app.webhooks.retries import PAUSES_S, pause_s
from app.webhooks.sender import Reply, Sender

CONCURRENCY = 64
"""Deliveries that one dispatcher sends at once: many receivers that hang must not have all places."""
_NOTING = 3
"""Of these, how many use the database at once: its connections are the API's too."""
HIDE_S = 60.0
"""More than an attempt takes."""
_POLL_S = 1.0
_GRACE_S = 2.0

log = structlog.get_logger(__name__)


class Dispatcher:
    """One sender. `start` before use, `close` after; `wake` when a delivery was written."""

    def __init__(
        self,
        sessions: Sessions,
        sender: Sender,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
        hide_s: float = HIDE_S,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self._sessions = sessions
        self._sender = sender
        self._pauses_s = pauses_s
        self._hide_s = hide_s
        self._concurrency = concurrency
        self._random = Random()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: dict[asyncio.Task[None], str] = {}
        self._noting = asyncio.Semaphore(_NOTING)

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._send_for_ever(), name="webhook-dispatcher")

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    async def close(self, grace_s: float = _GRACE_S) -> None:
        """Stop; what is on its way has `grace_s` to arrive, what was not sent waits for the next start."""
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

    async def _send_for_ever(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._send_due()
            except DATABASE_DOWN:
                pass  # the API says so already; deliveries wait
            except Exception:
                log.exception("webhooks could not be taken, trying again")
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    async def _send_due(self) -> None:
        """Begin to send what is due, as far as there are places. Each one's end wakes us for the next."""
        places = self._concurrency - len(self._sending)
        if places == 0:
            return
        in_flight = Counter(self._sending.values())
        last_attempt = len(self._pauses_s) + 1
        for taken in await take(self._sessions, places, in_flight, hide_s=self._hide_s, last_attempt=last_attempt):
            task = asyncio.create_task(self._deliver(taken), name=f"webhook-{taken.id}")
            self._sending[task] = taken.group
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhook's attempt was not noted", exc_info=error)

    async def _deliver(self, taken: Taken) -> None:
        reply = await self._sender.send(taken.receiver, taken.id, taken.started_at, taken.body)
        pause = pause_s(taken.attempts, reply.asked_s, self._random, self._pauses_s)
        _log(taken, reply, pause)
        async with asyncio.timeout(self._hide_s):  # past it the delivery is anybody's
            while True:
                try:
                    async with self._noting:
                        return await note(self._sessions, taken, reply, pause)
                except DATABASE_DOWN:
                    log.warning("webhook's outcome could not be saved, trying again", delivery=taken.id)
                await asyncio.sleep(_POLL_S)


def _log(taken: Taken, reply: Reply, pause: float | None) -> None:
    if reply.error is None:
        return
    told = {"run_id": taken.run_id, "delivery": taken.id, "endpoint": taken.receiver.id, "error": reply.error}
    if pause is None or reply.status == 410:
        log.warning("webhook failed for good", **told)
    else:
        log.info("webhook not delivered, trying again", **told)
