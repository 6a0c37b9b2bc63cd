"""All SQL about sending: which deliveries are due, and what became of an attempt. Times are the database's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CTE, ColumnElement, Integer, cast, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.session import Sessions
from app.db.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from app.webhooks.sender import Receiver, Reply

PER_ENDPOINT = 2
"""Deliveries to one endpoint that a dispatcher sends at once, so that a receiver that hangs cannot have all places."""
_GONE = "the endpoint was deleted or is disabled"
_NO_END = "given up: the service stopped in the middle of every attempt"


@dataclass(frozen=True, slots=True)
class Taken:
    """A delivery that is ours to send for a while."""

    id: str
    run_id: str
    body: str
    attempts: int
    """Since it was queued, with this one."""
    number: int
    """Of this attempt, among all there ever were."""
    started_at: datetime
    receiver: Receiver

    @property
    def group(self) -> str:
        """Whose share of places it uses."""
        return self.receiver.id or self.receiver.url


async def take(
    sessions: Sessions, places: int, in_flight: Mapping[str, int], *, hide_s: float, last_attempt: int
) -> list[Taken]:
    """At most `places` due deliveries that no earlier one of its run and receiver waits before.

    Each gets the row of its attempt, and is hidden from others for `hide_s`: whoever sends it must be done by then.
    What has nobody left to go to, or was begun more than `last_attempt` times, becomes a dead letter.
    """
    due = _due(places, in_flight)
    hide = (
        update(WebhookDelivery)
        .where(WebhookDelivery.id == due.c.id)
        .values(attempts=WebhookDelivery.attempts + 1, next_attempt_at=func.now() + timedelta(seconds=hide_s))
        .returning(WebhookDelivery)
        .execution_options(synchronize_session=False)
    )
    async with sessions.begin() as session:
        rows = (await session.execute(hide)).scalars().all()
        endpoints = await _endpoints(session, rows)
        sendable = []
        for row in rows:
            why = _why_not(row, endpoints.get(row.endpoint_id or ""), last_attempt)
            if why is None:
                sendable.append(row)
            else:
                await session.execute(
                    update(WebhookDelivery).where(WebhookDelivery.id == row.id).values(state="failed", last_error=why)
                )
        begun = await _begin(session, sendable)
    return [_taken(row, endpoints.get(row.endpoint_id or ""), *begun[row.id]) for row in sendable]


def _due(places: int, in_flight: Mapping[str, int]) -> CTE:
    """The ids of what may be sent now, locked."""
    row = WebhookDelivery
    receiver: ColumnElement[str] = func.coalesce(row.endpoint_id, row.url)
    turn = func.row_number().over(partition_by=(row.run_id, receiver), order_by=(row.event_seq.nulls_first(), row.seq))
    waiting = (
        select(row.id, row.next_attempt_at, receiver.label("receiver"), turn.label("turn"))
        .where(row.state == "pending")
        .cte("waiting")
    )
    busy = cast(func.jsonb_extract_path_text(cast(literal(json.dumps(in_flight)), JSONB), waiting.c.receiver), Integer)
    rank = func.row_number().over(partition_by=waiting.c.receiver, order_by=waiting.c.next_attempt_at)
    ranked = (
        select(waiting.c.id, (rank + func.coalesce(busy, 0)).label("place"))
        .where(waiting.c.turn == 1, waiting.c.next_attempt_at <= func.now())
        .cte("ranked")
    )
    return (
        select(row.id)
        .join(ranked, ranked.c.id == row.id)
        # The last two again on the row itself: once it is locked they are read anew, and another may have taken it.
        .where(ranked.c.place <= PER_ENDPOINT, row.state == "pending", row.next_attempt_at <= func.now())
        .order_by(row.next_attempt_at, row.seq)
        .limit(places)
        .with_for_update(skip_locked=True, of=row)
        .cte("due")
    )


async def _endpoints(session: AsyncSession, rows: Any) -> dict[str, WebhookEndpoint]:
    ids = {row.endpoint_id for row in rows if row.endpoint_id is not None}
    if not ids:
        return {}
    found = (await session.execute(select(WebhookEndpoint).where(WebhookEndpoint.id.in_(ids)))).scalars()
    return {endpoint.id: endpoint for endpoint in found}


def _why_not(row: WebhookDelivery, endpoint: WebhookEndpoint | None, last_attempt: int) -> str | None:
    # A delivery of no event is one to FRONTEND_URL as runs write it themselves: it never had an endpoint.
    if row.event_seq is not None and (endpoint is None or endpoint.disabled_at is not None):
        return _GONE
    return _NO_END if row.attempts > last_attempt else None


async def _begin(session: AsyncSession, rows: list[WebhookDelivery]) -> dict[str, tuple[int, datetime]]:
    """The attempts' numbers and times. Their rows are there before anything is sent: a crash leaves a trace."""
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


def _taken(row: WebhookDelivery, endpoint: WebhookEndpoint | None, number: int, at: datetime) -> Taken:
    receiver = Receiver(None, row.url) if endpoint is None else Receiver.of(endpoint, at)
    return Taken(row.id, row.run_id, row.body, row.attempts, number, at, receiver)


async def note(sessions: Sessions, taken: Taken, reply: Reply, pause_s: float | None) -> None:
    """Save how an attempt went: delivered, to be tried again after a pause, or (None) a dead letter.

    A receiver that answered 410 is never asked again.
    """
    settle = update(WebhookDelivery).where(WebhookDelivery.id == taken.id, WebhookDelivery.state == "pending")
    mine = settle.where(WebhookDelivery.attempts == taken.attempts)  # nobody has taken it since
    async with sessions.begin() as session:
        if reply.status == 410 and taken.receiver.id is not None:
            await disable(session, taken.receiver.id, "the receiver answered 410: it wants no more")
        if reply.error is None:
            settle = settle.values(state="delivered", delivered_at=func.now(), last_error=None, url=taken.receiver.url)
        elif pause_s is None or reply.status == 410:
            settle = mine.values(state="failed", last_error=reply.error, url=taken.receiver.url)
        else:
            due = func.now() + timedelta(seconds=pause_s)
            settle = mine.values(next_attempt_at=due, last_error=reply.error, url=taken.receiver.url)
        await session.execute(settle)
        await session.execute(
            update(WebhookAttempt)
            .where(WebhookAttempt.delivery_id == taken.id, WebhookAttempt.number == taken.number)
            .values(seconds=reply.seconds, status=reply.status, error=reply.error)
        )


async def disable(session: AsyncSession, endpoint_id: str, reason: str) -> None:
    """Send nothing more to an endpoint; what waits for it becomes dead letters, which a replay brings back."""
    await session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.disabled_at.is_(None))
        .values(disabled_at=func.now(), disabled_reason=reason)
    )
    await session.execute(
        update(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == "pending")
        .values(state="failed", last_error=reason)
    )
