"""Creates an event's deliveries, in the event's own transaction."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, SQLColumnExpression, and_, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from app.db.tables import Event, Run, WebhookDelivery, WebhookEndpoint


async def enqueue(session: AsyncSession, event: Event) -> None:
    """Write a delivery for every endpoint that subscribes to the event."""
    subscribed = (
        select(WebhookEndpoint.id, WebhookEndpoint.url)
        .join(Run, Run.id == event.run_id)
        .where(
            WebhookEndpoint.disabled_at.is_(None),
            covers_run(event.run_id, Run.model_project),
            subscribes_to(event.type),
        )
        # An endpoint that is deleted meanwhile would fail the event's transaction, which is the run's.
        .with_for_update(read=True, key_share=True, of=WebhookEndpoint)
    )
    found = (await session.execute(subscribed)).all()
    if found:
        body = event_body(event)
        await session.execute(insert(WebhookDelivery), [delivery(event, id, url, body) for id, url in found])


def covers_run(run_id: str, project: SQLColumnExpression[str]) -> ColumnElement[bool]:
    """Whether an endpoint is for that run, or for all runs of its project."""
    of_project = or_(WebhookEndpoint.project.is_(None), WebhookEndpoint.project == project)
    return or_(WebhookEndpoint.run_id == run_id, and_(WebhookEndpoint.run_id.is_(None), of_project))


def subscribes_to(type: str | SQLColumnExpression[str]) -> ColumnElement[bool]:
    """Whether an endpoint subscribes to events of that type; one without a list subscribes to all."""
    return or_(func.jsonb_array_length(WebhookEndpoint.events) == 0, func.jsonb_exists(WebhookEndpoint.events, type))


def delivery(event: Event, endpoint_id: str, url: str, body: str) -> dict[str, Any]:
    """The row of an event's delivery to an endpoint."""
    return {
        "id": str(ULID()),
        "run_id": event.run_id,
        "endpoint_id": endpoint_id,
        "event_seq": event.seq,
        "event_type": event.type,
        "iteration": event.iteration,
        "url": url,
        "body": body,
    }


def event_body(event: Event) -> str:
    """The JSON text of an event, the same on each call. The event's data is merged into the envelope."""
    envelope = {
        "type": event.type,
        "timestamp": rfc3339(event.occurred_at),
        "run_id": event.run_id,
        "seq": event.seq,
        "iteration": event.iteration,
        "version": event.version,
    }
    return body_text(envelope | event.data | envelope)


def body_text(body: Mapping[str, Any]) -> str:
    """A message's JSON text."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False)


def rfc3339(time: datetime) -> str:
    """Such as 2026-03-14T09:30:00.000Z."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
