"""The SQL of sending: claims deliveries that are due, and records each attempt. All times are the database's."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.clock import DatabaseTime
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.app.webhooks import turns
from learnloop_service.app.webhooks.sender import Receiver, SendResult

PER_ENDPOINT = 2
"""Number of deliveries to one endpoint that a dispatcher sends concurrently. A hanging receiver must not use all
slots."""
_GONE = "the endpoint was deleted or is disabled"
_CRASHED_EVERY_TIME = "given up: the service stopped in the middle of every attempt"


class DeliveryShare(NamedTuple):
    """The project and receiver whose share of concurrent sends a delivery uses."""

    project: str
    receiver: str


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that this dispatcher can send until its visibility timeout."""

    id: str
    subject: str
    body: str
    attempts: int
    """Number of attempts since it was last queued, including this one."""
    number: int
    """This attempt's number among all attempts ever made."""
    clock: DatabaseTime
    receiver: Receiver
    group: DeliveryShare


async def claim(
    database: Database,
    slots: int,
    in_flight: Mapping[DeliveryShare, int],
    *,
    visibility_timeout_s: float,
    last_attempt: int,
) -> list[ClaimedDelivery]:
    """Claim at most `slots` due deliveries, only the first pending one of each run or evaluation and receiver.

    Projects take turns. None gets more than half of the slots that the others leave, so another project always finds a
    free one. Each delivery gets a row for its attempt and is hidden from other dispatchers for `visibility_timeout_s`,
    in which sending must end. A delivery without a receiver, or with more than `last_attempt` attempts, becomes a dead
    letter.
    """
    async with database.begin() as tx:
        due = (await tx.execute(_DUE, _parameters(slots, in_flight))).scalars().all()
        hide = (
            update(WebhookDelivery)
            .where(WebhookDelivery.id.in_(due))
            .values(
                attempts=WebhookDelivery.attempts + 1,
                next_attempt_at=func.now() + timedelta(seconds=visibility_timeout_s),
            )
            .returning(WebhookDelivery)
            .execution_options(synchronize_session=False)
        )
        rows = (await tx.execute(hide)).scalars().all() if due else []
        endpoints = await _endpoints(tx, rows)
        reasons = {
            row.id: _undeliverable_reason(row, endpoints.get(row.endpoint_id or ""), last_attempt) for row in rows
        }
        sendable = [row for row in rows if reasons[row.id] is None]
        begun = await _begin(tx, sendable)
    for row in rows:
        if (reason := reasons[row.id]) is not None:
            await _give_up(database, row, reason)
    return [_claimed(row, endpoints.get(row.endpoint_id or ""), *begun[row.id]) for row in sendable]


_DUE = text(
    """
    WITH RECURSIVE busy AS (
        SELECT * FROM unnest(CAST(:projects AS text[]), CAST(:receivers AS text[]), CAST(:counts AS int[]))
            AS busy(project, receiver, sending)
    ), lane AS (  -- each project and receiver for which something may be sent: one step in the index for each
        (SELECT project, receiver FROM webhook_delivery WHERE state = 'pending' AND is_next
            ORDER BY project, receiver LIMIT 1)
        UNION ALL
        SELECT after.project, after.receiver FROM lane CROSS JOIN LATERAL (
            SELECT d.project, d.receiver FROM webhook_delivery d
            WHERE d.state = 'pending' AND d.is_next AND (d.project, d.receiver) > (lane.project, lane.receiver)
            ORDER BY d.project, d.receiver LIMIT 1
        ) AS after
    ), due AS (  -- of each its oldest ones, as far as it may be sent more
        SELECT oldest.*, row_number() OVER (
            PARTITION BY lane.project, lane.receiver ORDER BY oldest.next_attempt_at, oldest.seq
        ) + coalesce(busy.sending, 0) AS slot
        FROM lane LEFT JOIN busy USING (project, receiver) CROSS JOIN LATERAL (
            SELECT d.id, d.project, d.next_attempt_at, d.seq FROM webhook_delivery d
            WHERE d.state = 'pending' AND d.is_next AND d.project = lane.project AND d.receiver = lane.receiver
                AND d.next_attempt_at <= now()
            ORDER BY d.next_attempt_at, d.seq LIMIT :per_endpoint
        ) AS oldest
    ), placed AS (  -- in turns of the projects, those that send less first
        SELECT due.*, row_number() OVER (PARTITION BY due.project ORDER BY due.next_attempt_at, due.seq)
            + coalesce(own.sending, 0) AS place,
            greatest(1, (:capacity - :all_sending + coalesce(own.sending, 0) + 1) / 2) AS room
        FROM due LEFT JOIN (SELECT project, sum(sending) AS sending FROM busy GROUP BY project) AS own USING (project)
        WHERE due.slot <= :per_endpoint
    )
    SELECT d.id FROM webhook_delivery d JOIN placed ON placed.id = d.id
    WHERE placed.place <= placed.room
        -- Again on the row itself: once it is locked it is read anew, and another may have claimed it.
        AND d.state = 'pending' AND d.is_next AND d.next_attempt_at <= now()
    ORDER BY placed.place, placed.next_attempt_at, placed.seq
    LIMIT :slots
    FOR UPDATE OF d SKIP LOCKED
    """
)
"""Selects and locks the ids of the deliveries that can be sent now."""


def _parameters(slots: int, in_flight: Mapping[DeliveryShare, int]) -> dict[str, Any]:
    sending = sum(in_flight.values())
    return {
        "projects": [group.project for group in in_flight],
        "receivers": [group.receiver for group in in_flight],
        "counts": list(in_flight.values()),
        "per_endpoint": PER_ENDPOINT,
        "slots": slots,
        "capacity": slots + sending,
        "all_sending": sending,
    }


async def _give_up(database: Database, row: WebhookDelivery, reason: str) -> None:
    """Turn a delivery that cannot be sent into a dead letter."""
    settle = update(WebhookDelivery).where(
        WebhookDelivery.id == row.id,
        WebhookDelivery.state == DeliveryState.PENDING,
        WebhookDelivery.attempts == row.attempts,
    )
    async with database.begin() as tx:
        await turns.hold(tx, row.subject)
        await tx.execute(settle.values(state=DeliveryState.FAILED, last_error=reason))
        await turns.advance(tx, row.subject, row.receiver)


async def _endpoints(tx: AsyncSession, rows: Any) -> dict[str, WebhookEndpoint]:
    ids = {row.endpoint_id for row in rows if row.endpoint_id is not None}
    if not ids:
        return {}
    endpoints = (await tx.execute(select(WebhookEndpoint).where(WebhookEndpoint.id.in_(ids)))).scalars()
    return {endpoint.id: endpoint for endpoint in endpoints}


def _undeliverable_reason(row: WebhookDelivery, endpoint: WebhookEndpoint | None, last_attempt: int) -> str | None:
    # A delivery without an event was written by an older version for FRONTEND_URL, and never had an endpoint.
    if row.event_seq is not None and (endpoint is None or endpoint.disabled_at is not None):
        return _GONE
    return _CRASHED_EVERY_TIME if row.attempts > last_attempt else None


async def _begin(tx: AsyncSession, rows: list[WebhookDelivery]) -> dict[str, tuple[int, datetime]]:
    """Write the attempts' rows before anything is sent, so that a crash leaves a trace. Returns their numbers and
    times."""
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
    return {id: (number, at) for id, number, at in (await tx.execute(begin)).all()}


def _claimed(row: WebhookDelivery, endpoint: WebhookEndpoint | None, number: int, at: datetime) -> ClaimedDelivery:
    receiver = Receiver(None, row.url) if endpoint is None else Receiver.of(endpoint, at)
    group = DeliveryShare(row.project, row.receiver)
    return ClaimedDelivery(row.id, row.subject, row.body, row.attempts, number, DatabaseTime(at), receiver, group)


async def record_attempt(
    database: Database, claimed: ClaimedDelivery, result: SendResult, retry_delay_s: float | None
) -> None:
    """Save an attempt's result. A failed delivery is retried after `retry_delay_s`, or becomes a dead letter if that is
    None.

    Nothing more is sent to a receiver that answered 410.
    """
    settle = update(WebhookDelivery).where(
        WebhookDelivery.id == claimed.id, WebhookDelivery.state == DeliveryState.PENDING
    )
    if_current = settle.where(WebhookDelivery.attempts == claimed.attempts)  # only if it was not claimed again since
    async with database.begin() as tx:
        if result.status == 410 and claimed.receiver.id is not None:
            await disable(tx, claimed.receiver.id, "the receiver answered 410: it wants no more")
        await turns.hold(tx, claimed.subject)
        if result.error is None:
            settle = settle.values(
                state=DeliveryState.DELIVERED, delivered_at=func.now(), last_error=None, url=claimed.receiver.url
            )
        elif retry_delay_s is None or result.status == 410:
            settle = if_current.values(state=DeliveryState.FAILED, last_error=result.error, url=claimed.receiver.url)
        else:
            due = func.now() + timedelta(seconds=retry_delay_s)
            settle = if_current.values(next_attempt_at=due, last_error=result.error, url=claimed.receiver.url)
        await tx.execute(settle)
        await tx.execute(
            update(WebhookAttempt)
            .where(WebhookAttempt.delivery_id == claimed.id, WebhookAttempt.number == claimed.number)
            .values(seconds=result.seconds, status=result.status, error=result.error)
        )
        await turns.advance(tx, claimed.subject, claimed.group.receiver)


async def disable(tx: AsyncSession, endpoint_id: str, reason: str) -> None:
    """Disable an endpoint. Its pending deliveries become dead letters, which a replay queues again."""
    await tx.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.disabled_at.is_(None))
        .values(disabled_at=func.now(), disabled_reason=reason)
    )
    await tx.execute(
        update(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == DeliveryState.PENDING)
        .values(state=DeliveryState.FAILED, last_error=reason)
    )
