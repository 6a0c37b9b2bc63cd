"""Sends the deliveries that lie in the database: in order per run and receiver, at least once, with bounded retries.

A delivery is hidden for a while when it is taken, so that a service that dies between sending and noting it sends it
again under the same id and with the same bytes.
"""

import asyncio
import contextlib
from datetime import timedelta
from typing import NamedTuple

import httpx
import structlog
from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import aliased

from app.db import Sessions
from app.errors import DATABASE_DOWN
from app.models import WebhookDelivery

TIMEOUT_S = 15.0
RETRY_AFTER_S = (2.0, 10.0, 60.0, 300.0, 1800.0)
"""Pauses before the second, third, ... attempt; when they are used up the delivery has failed."""
_HIDE_S = 60.0
_POLL_S = 1.0

log = structlog.get_logger(__name__)


class _Taken(NamedTuple):
    id: str
    run_id: str
    url: str
    body: str
    attempts: int


class Dispatcher:
    """One sender. `start` before use, `close` after; `wake` when a delivery was written."""

    def __init__(self, sessions: Sessions, retry_after_s: tuple[float, ...] = RETRY_AFTER_S) -> None:
        self._sessions = sessions
        self._retry_after_s = retry_after_s
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._send_for_ever(), name="webhook-dispatcher")

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    async def close(self) -> None:
        """Stop; what was not sent waits for the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _send_for_ever(self) -> None:
        # trust_env: a proxy or .netrc of the environment is not meant for receivers.
        async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
            while True:
                self._wake.clear()
                with contextlib.suppress(*DATABASE_DOWN):
                    while (taken := await self._take()) is not None:
                        await self._note(taken, await _attempt(client, taken))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _POLL_S)

    async def _take(self) -> _Taken | None:
        """The oldest due delivery that no earlier one of its run and receiver waits before."""
        earlier = aliased(WebhookDelivery)
        due = (
            select(WebhookDelivery.id)
            .where(
                WebhookDelivery.state == "pending",
                WebhookDelivery.next_attempt_at <= func.now(),
                ~exists().where(
                    earlier.run_id == WebhookDelivery.run_id,
                    earlier.state == "pending",
                    earlier.url == WebhookDelivery.url,
                    earlier.seq < WebhookDelivery.seq,
                ),
            )
            .order_by(WebhookDelivery.next_attempt_at, WebhookDelivery.seq)
            .limit(1)
            .with_for_update(skip_locked=True, of=WebhookDelivery)
            .scalar_subquery()
        )
        take = (
            update(WebhookDelivery)
            .where(WebhookDelivery.id == due)
            .values(attempts=WebhookDelivery.attempts + 1, next_attempt_at=func.now() + timedelta(seconds=_HIDE_S))
            .returning(
                WebhookDelivery.id,
                WebhookDelivery.run_id,
                WebhookDelivery.url,
                WebhookDelivery.body,
                WebhookDelivery.attempts,
            )
        )
        async with self._sessions.begin() as session:
            row = (await session.execute(take)).one_or_none()
        return None if row is None else _Taken(*row)

    async def _note(self, taken: _Taken, error: str | None) -> None:
        """Save how an attempt went: delivered, to be tried again, or failed for good."""
        note = update(WebhookDelivery).where(WebhookDelivery.id == taken.id, WebhookDelivery.state == "pending")
        if error is None:
            note = note.values(state="delivered", delivered_at=func.now(), last_error=None)
        elif taken.attempts > len(self._retry_after_s):
            note = note.values(state="failed", last_error=error)
            log.warning("webhook failed for good", run_id=taken.run_id, delivery=taken.id, error=error)
        else:
            pause = timedelta(seconds=self._retry_after_s[taken.attempts - 1])
            note = note.values(next_attempt_at=func.now() + pause, last_error=error)
            log.info("webhook not delivered, trying again", run_id=taken.run_id, delivery=taken.id, error=error)
        async with self._sessions.begin() as session:
            await session.execute(note)


async def _attempt(client: httpx.AsyncClient, taken: _Taken) -> str | None:
    """Send once; None if the receiver took it, else what went wrong."""
    headers = {"Content-Type": "application/json", "User-Agent": "learnloop", "Webhook-Id": taken.id}
    try:
        async with client.stream("POST", taken.url, content=taken.body.encode(), headers=headers) as response:
            status = response.status_code  # the reply's body is of no interest, however long
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    return None if 200 <= status < 300 else f"the receiver answered {status}"
