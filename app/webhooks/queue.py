"""The SQL of sending: which deliveries are due, and recording each attempt. Times are the database's clock."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CTE, ColumnElement, Integer, cast, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.clock import DatabaseTime
from app.db.session import Sessions
from app.db.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from app.domain.delivery_state import DeliveryState
from app.webhooks.sender import Receiver, SendResult

PER_ENDPOINT = 2
"""Deliveries to one endpoint that a dispatcher sends concurrently: a receiver that hangs must not use all slots."""
_GONE = "the endpoint was deleted or is disabled"
_NO_END = "given up: the service stopped in the middle of every attempt"


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that this dispatcher may send until its visibility timeout."""

    id: str
    run_id: str
    body: str
    attempts: int
    """Since it was last queued, including this one."""
    number: int
    """This attempt's number among all attempts ever made."""
    clock: DatabaseTime
    receiver: Receiver

    @property
    def group(self) -> str:
        """The receiver whose share of concurrent sends it uses."""
        return self.receiver.id or self.receiver.url


async def claim(
    sessions: Sessions, slots: int, in_flight: Mapping[str, int], *, visibility_timeout_s: float, last_attempt: int
) -> list[ClaimedDelivery]:
    """Claim at most `slots` due deliveries, only the first pending one of each run and receiver.

    Each gets a row for its attempt and is hidden from other dispatchers for `visibility_timeout_s`; sending must end
    by then. A delivery without a receiver, or with more than `last_attempt` attempts, becomes a dead letter.
    """
    due = _due(slots, in_flight)
    hide = (
        update(WebhookDelivery)
        .where(WebhookDelivery.id == due.c.id)
        .values(
            attempts=WebhookDelivery.attempts + 1, next_attempt_at=func.now() + timedelta(seconds=visibility_timeout_s)
        )
        .returning(WebhookDelivery)
        .execution_options(synchronize_session=False)
    )
    async with sessions.begin() as session:
        rows = (await session.execute(hide)).scalars().all()
        endpoints = await _endpoints(session, rows)
        sendable = []
        for row in rows:
            reason = _undeliverable_reason(row, endpoints.get(row.endpoint_id or ""), last_attempt)
            if reason is None:
                sendable.append(row)
            else:
                await session.execute(
                    update(WebhookDelivery)
                    .where(WebhookDelivery.id == row.id)
                    .values(state=DeliveryState.FAILED, last_error=reason)
                )
        begun = await _begin(session, sendable)
    return [_claimed(row, endpoints.get(row.endpoint_id or ""), *begun[row.id]) for row in sendable]


def _due(slots: int, in_flight: Mapping[str, int]) -> CTE:
    """The ids of the deliveries that may be sent now, locked."""
    row = WebhookDelivery
    receiver: ColumnElement[str] = func.coalesce(row.endpoint_id, row.url)
    turn = func.row_number().over(partition_by=(row.run_id, receiver), order_by=(row.event_seq.nulls_first(), row.seq))
    waiting = (
        select(row.id, row.next_attempt_at, receiver.label("receiver"), turn.label("turn"))
        .where(row.state == DeliveryState.PENDING)
        .cte("waiting")
    )
    busy = cast(func.jsonb_extract_path_text(cast(literal(json.dumps(in_flight)), JSONB), waiting.c.receiver), Integer)
    rank = func.row_number().over(partition_by=waiting.c.receiver, order_by=waiting.c.next_attempt_at)
    ranked = (
        select(waiting.c.id, (rank + func.coalesce(busy, 0)).label("slot"))
        .where(waiting.c.turn == 1, waiting.c.next_attempt_at <= func.now())
        .cte("ranked")
    )
    return (
        select(row.id)
        .join(ranked, ranked.c.id == row.id)
        # The last two again on the row itself: once it is locked they are read anew, and another may have claimed it.
        .where(ranked.c.slot <= PER_ENDPOINT, row.state == DeliveryState.PENDING, row.next_attempt_at <= func.now())
        .order_by(row.next_attempt_at, row.seq)
        .limit(slots)
        .with_for_update(skip_locked=True, of=row)
        .cte("due")
    )


async def _endpoints(session: AsyncSession, rows: Any) -> dict[str, WebhookEndpoint]:
    ids = {row.endpoint_id for row in rows if row.endpoint_id is not None}
    if not ids:
        return {}
    found = (await session.execute(select(WebhookEndpoint).where(WebhookEndpoint.id.in_(ids)))).scalars()
    return {endpoint.id: endpoint for endpoint in found}


def _undeliverable_reason(row: WebhookDelivery, endpoint: WebhookEndpoint | None, last_attempt: int) -> str | None:
    # A delivery without an event was written by an older version for FRONTEND_URL: it never had an endpoint.
    if row.event_seq is not None and (endpoint is None or endpoint.disabled_at is not None):
        return _GONE
    return _NO_END if row.attempts > last_attempt else None


async def _begin(session: AsyncSession, rows: list[WebhookDelivery]) -> dict[str, tuple[int, datetime]]:
    """The attempts' numbers and times. Rows are written before anything is sent: a crash leaves a trace."""
    if not rows:
        return {}
    numbered = (
        select(WebhookDelivery.id, func.coalesce(func.max(WebhookAttempt.number), 0) + 1, func.clock_timestamp())
        .outerjoin(WebhookAttempt, WebhookAttempt.delivery_id == WebhookDelivery.id)
        .where(WebhookDelivery.id.in_([row.id for row in rows]))
        .group_by(WebhookDelivery.id)
    )
    begin = (
        insert(WebhookAttempt)
        .from_select(["delivery_id", "number", "started_at"], numbered)
        .returning(WebhookAttempt.delivery_id, WebhookAttempt.number, WebhookAttempt.started_at)
    )
    return {id: (number, at) for id, number, at in (await session.execute(begin)).all()}


def _claimed(row: WebhookDelivery, endpoint: WebhookEndpoint | None, number: int, at: datetime) -> ClaimedDelivery:
    receiver = Receiver(None, row.url) if endpoint is None else Receiver.of(endpoint, at)
    return ClaimedDelivery(row.id, row.run_id, row.body, row.attempts, number, DatabaseTime(at), receiver)


async def record_attempt(
    sessions: Sessions, claimed: ClaimedDelivery, result: SendResult, retry_delay_s: float | None
) -> None:
    """Save an attempt's result. A failed one is retried after `retry_delay_s`; None: it becomes a dead letter.

    Nothing more is sent to a receiver that answered 410.
    """
    settle = update(WebhookDelivery).where(
        WebhookDelivery.id == claimed.id, WebhookDelivery.state == DeliveryState.PENDING
    )
    mine = settle.where(WebhookDelivery.attempts == claimed.attempts)  # not claimed again since
    async with sessions.begin() as session:
        if result.status == 410 and claimed.receiver.id is not None:
            await disable(session, claimed.receiver.id, "the receiver answered 410: it wants no more")
        if result.error is None:
            settle = settle.values(
                state=DeliveryState.DELIVERED, delivered_at=func.now(), last_error=None, url=claimed.receiver.url
            )
        elif retry_delay_s is None or result.status == 410:
            settle = mine.values(state=DeliveryState.FAILED, last_error=result.error, url=claimed.receiver.url)
        else:
            due = func.now() + timedelta(seconds=retry_delay_s)
            settle = mine.values(next_attempt_at=due, last_error=result.error, url=claimed.receiver.url)
        await session.execute(settle)
        await session.execute(
            update(WebhookAttempt)
            .where(WebhookAttempt.delivery_id == claimed.id, WebhookAttempt.number == claimed.number)
            .values(seconds=result.seconds, status=result.status, error=result.error)
        )


async def disable(session: AsyncSession, endpoint_id: str, reason: str) -> None:
    """Send nothing more to an endpoint; its pending deliveries become dead letters, which a replay queues again."""
    await session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.disabled_at.is_(None))
        .values(disabled_at=func.now(), disabled_reason=reason)
    )
    await session.execute(
        update(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == DeliveryState.PENDING)
        .values(state=DeliveryState.FAILED, last_error=reason)
    )
