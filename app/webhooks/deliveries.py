"""Deliveries and their attempts: listing, redelivery and replay."""

from collections.abc import Sequence

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import Event, Run, WebhookAttempt, WebhookDelivery, WebhookEndpoint
from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.app.errors import Conflict, NotFound, existing
from learnloop_service.app.webhooks import turns
from learnloop_service.app.webhooks.endpoints import require
from learnloop_service.app.webhooks.outbox import MAX_PENDING, covers_run, delivery, event_body, subscribes_to

REPLAY_BATCH = 500
"""Maximum number of events that one replay request queues."""
_QUEUED_AGAIN = {"state": DeliveryState.PENDING, "attempts": 0, "next_attempt_at": func.now(), "delivered_at": None}


class Deliveries:
    """The deliveries in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def listed(
        self, endpoint_id: str, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> Sequence[WebhookDelivery]:
        """List an endpoint's deliveries, newest first. Raises NotFound."""
        query = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
        query = newest_first(query, WebhookDelivery.seq, before, limit, (WebhookDelivery.state, state))
        async with self._database() as tx:
            await require(tx, endpoint_id)
            return (await tx.execute(query)).scalars().all()

    async def get(self, id: str) -> tuple[WebhookDelivery, Sequence[WebhookAttempt]]:
        """Return a delivery and its attempts in order. Raises NotFound."""
        attempts = select(WebhookAttempt).where(WebhookAttempt.delivery_id == id).order_by(WebhookAttempt.number)
        async with self._database() as tx:
            return await _delivery(tx, id), (await tx.execute(attempts)).scalars().all()

    async def redeliver(self, id: str) -> WebhookDelivery:
        """Queue a delivery again with the full retry schedule. Raises NotFound, or Conflict if its endpoint is disabled
        or deleted.

        It keeps its id and body, so that the receiver can recognize it. A pending delivery becomes due now.
        """
        async with self._database.begin() as tx:
            row = await _delivery(tx, id)
            if row.event_seq is not None:
                await _require_enabled(tx, row.endpoint_id)
            await turns.hold(tx, row.subject)
            await tx.execute(update(WebhookDelivery).where(WebhookDelivery.id == id).values(_QUEUED_AGAIN))
            await turns.assign(tx, row.subject, row.receiver)
            return await _delivery(tx, id)

    async def replay(self, endpoint_id: str, run_id: str, after_seq: int) -> tuple[int, int | None]:
        """Queue a run's events with a greater `seq` for an endpoint, whether or not they were sent before.

        Returns the number of events, and the `after_seq` of the next batch, or None if there are no more. Raises
        NotFound or Conflict.
        """
        async with self._database.begin() as tx:
            url = (await _require_enabled(tx, endpoint_id)).url
            project = await _require_covered(tx, endpoint_id, run_id)
            await turns.hold(tx, run_id)
            await _require_room(tx, endpoint_id, project)
            events = await _subscribed_events(tx, endpoint_id, run_id, after_seq)
            requeued = await _queue_again(tx, endpoint_id, run_id, [event.seq for event in events])
            new = [
                delivery(event, endpoint_id, url, event_body(event), project)
                for event in events
                if event.seq not in requeued
            ]
            if new:
                await tx.execute(insert(WebhookDelivery), new)
            await turns.assign(tx, run_id, endpoint_id)
        return len(events), events[-1].seq if len(events) == REPLAY_BATCH else None


async def _delivery(tx: AsyncSession, id: str) -> WebhookDelivery:
    return existing(await tx.get(WebhookDelivery, id, populate_existing=True), "delivery", id)


async def _require_enabled(tx: AsyncSession, id: str | None) -> WebhookEndpoint:
    if id is None:
        raise Conflict("The webhook of this delivery was deleted.")
    endpoint = await require(tx, id)
    if endpoint.disabled_at is not None:
        raise Conflict(f"The webhook is disabled ({endpoint.disabled_reason}); enable it first.")
    return endpoint


async def _require_covered(tx: AsyncSession, endpoint_id: str, run_id: str) -> str:
    """Return the run's project. Raises NotFound if the endpoint does not receive the run's events."""
    covered = (
        select(Run.model_project)
        .join(WebhookEndpoint, covers_run(run_id, Run.model_project))
        .where(Run.id == run_id, WebhookEndpoint.id == endpoint_id)
    )
    if (project := (await tx.execute(covered)).scalar_one_or_none()) is None:
        raise NotFound(f"There is no run {run_id!r} whose events this webhook receives.")
    return project


async def _require_room(tx: AsyncSession, endpoint_id: str, project: str) -> None:
    row = WebhookDelivery
    waiting = (row.project == project, row.receiver == endpoint_id, row.state == DeliveryState.PENDING)
    last = select(row.id).where(*waiting).offset(MAX_PENDING - REPLAY_BATCH).limit(1)
    if (await tx.execute(last)).scalar_one_or_none() is not None:
        raise Conflict(f"About {MAX_PENDING:,} deliveries already wait for this webhook; replay when they are through.")


async def _subscribed_events(tx: AsyncSession, endpoint_id: str, run_id: str, after_seq: int) -> Sequence[Event]:
    query = (
        select(Event)
        .join(WebhookEndpoint, WebhookEndpoint.id == endpoint_id)
        .where(Event.run_id == run_id, Event.seq > after_seq, subscribes_to(Event.type))
        .order_by(Event.seq)
        .limit(REPLAY_BATCH)
    )
    return (await tx.execute(query)).scalars().all()


async def _queue_again(tx: AsyncSession, endpoint_id: str, run_id: str, seqs: Sequence[int]) -> set[int]:
    """Queue the existing deliveries of these events again, and return the `seq` of each event that has one."""
    conditions = (
        WebhookDelivery.endpoint_id == endpoint_id,
        WebhookDelivery.run_id == run_id,
        WebhookDelivery.event_seq.in_(seqs),
    )
    query = select(WebhookDelivery.event_seq).where(*conditions)
    queued = {seq for seq in (await tx.execute(query)).scalars() if seq is not None}
    settled = update(WebhookDelivery).where(*conditions, WebhookDelivery.state != DeliveryState.PENDING)
    await tx.execute(settled.values(_QUEUED_AGAIN))
    return queued
