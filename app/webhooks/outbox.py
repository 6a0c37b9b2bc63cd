"""Creates an event's deliveries, in the event's own transaction."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import (
    ColumnElement,
    Select,
    SQLColumnExpression,
    Text,
    and_,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute
from ulid import ULID

from learnloop_service.app.db.tables import (
    EvaluationEvent,
    EvaluationJob,
    Event,
    Release,
    ReleaseEvent,
    Run,
    WebhookDelivery,
    WebhookEndpoint,
)
from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.app.webhooks import turns

AnyEvent = Event | EvaluationEvent | ReleaseEvent

MAX_PENDING = 10_000
"""Maximum number of a project's deliveries that wait for one endpoint. Further ones become dead letters, which a replay
queues again."""
_FULL = f"not queued: {MAX_PENDING:,} deliveries already wait for this endpoint; replay the run when they are through"

log = structlog.get_logger(__name__)


async def enqueue(tx: AsyncSession, event: AnyEvent) -> None:
    """Write a delivery for every endpoint that subscribes to the event, or a dead letter if too many are waiting."""
    subject = subject_of(event)
    subscribers = (await tx.execute(_SUBSCRIBED[type(event)], {"subject": subject, "event_type": event.type})).all()
    if not subscribers:
        return
    await turns.hold(tx, subject)
    project = subscribers[0][2]
    body = event_body(event)
    crowded = await _crowded(tx, subject, project, [id for id, *_ in subscribers])
    rows = []
    for id, url, _ in subscribers:
        waiting, full = crowded[id]
        row = delivery(event, id, url, body, project) | {"is_next": not waiting and not full}
        if full:
            log.warning("webhook delivery not queued: too many wait", subject=subject, endpoint=id)
            row |= {"state": DeliveryState.FAILED, "last_error": _FULL}
        else:
            row |= {"state": DeliveryState.PENDING, "last_error": None}
        rows.append(row)
    await tx.execute(insert(WebhookDelivery), rows)


async def _crowded(
    tx: AsyncSession, subject: str, project: str, endpoint_ids: Sequence[str]
) -> dict[str, tuple[bool, bool]]:
    """Return for each endpoint whether deliveries of the same subject wait for it, and whether the project has the
    maximum number waiting."""
    pending = (WebhookDelivery.receiver == WebhookEndpoint.id, WebhookDelivery.state == DeliveryState.PENDING)
    waiting = exists().where(*pending, turns.of_subject(subject))
    last = (
        select(WebhookDelivery.id).where(*pending, WebhookDelivery.project == project).offset(MAX_PENDING - 1).limit(1)
    )
    query = select(WebhookEndpoint.id, waiting, last.exists()).where(WebhookEndpoint.id.in_(endpoint_ids))
    return {id: (is_waiting, is_full) for id, is_waiting, is_full in (await tx.execute(query)).all()}


def covers_run(run_id: str | SQLColumnExpression[str], project: SQLColumnExpression[str]) -> ColumnElement[bool]:
    """SQL condition: an endpoint is for that run, or for all runs of its project."""
    return or_(WebhookEndpoint.run_id == run_id, covers_project(project))


def covers_project(project: SQLColumnExpression[str]) -> ColumnElement[bool]:
    """SQL condition: an endpoint is for everything that happens in the project."""
    of_project = or_(WebhookEndpoint.project.is_(None), WebhookEndpoint.project == project)
    return and_(WebhookEndpoint.run_id.is_(None), of_project)


def subscribes_to(type: str | SQLColumnExpression[str]) -> ColumnElement[bool]:
    """SQL condition: an endpoint subscribes to events of that type. One without a list subscribes to all."""
    return or_(func.jsonb_array_length(WebhookEndpoint.events) == 0, func.jsonb_exists(WebhookEndpoint.events, type))


def _subscribed(
    subject: InstrumentedAttribute[str], project: InstrumentedAttribute[str], covered: ColumnElement[bool]
) -> Select[str, str, str]:
    """Select the endpoints that an event goes to, and the project of what it belongs to."""
    return (
        select(WebhookEndpoint.id, WebhookEndpoint.url, project)
        .join(subject.class_, subject == _SUBJECT)
        .where(WebhookEndpoint.disabled_at.is_(None), covered, subscribes_to(bindparam("event_type", type_=Text)))
        # The lock prevents changes in the meantime: a deleted endpoint would fail the event's transaction, which is the
        # run's, and a disabled one would leave a delivery behind.
        .with_for_update(read=True, of=WebhookEndpoint)
    )


_SUBJECT = bindparam("subject", type_=Text)
# Built once, because almost every transaction has an event, and building a statement costs more than sending it.
_SUBSCRIBED: Mapping[type[AnyEvent], Select[str, str, str]] = {
    Event: _subscribed(Run.id, Run.model_project, covers_run(_SUBJECT, Run.model_project)),
    EvaluationEvent: _subscribed(EvaluationJob.id, EvaluationJob.project, covers_project(EvaluationJob.project)),
    ReleaseEvent: _subscribed(Release.id, Release.project, covers_project(Release.project)),
}
_SUBJECTS: Mapping[type[AnyEvent], str] = {
    Event: "run_id",
    EvaluationEvent: "evaluation_id",
    ReleaseEvent: "release_id",
}
"""The column that names what an event belongs to. Deliveries have the same columns."""


def subject_of(event: AnyEvent) -> str:
    """Return the id of the event's run, evaluation or release."""
    subject: str = getattr(event, _SUBJECTS[type(event)])
    return subject


def message_id(event: AnyEvent, endpoint_id: str) -> str:
    """Return the id of an event's message to an endpoint. It follows from the event's subject and number, so that a
    receiver recognizes an event that is sent again after the database was restored from a copy. The type is part of it,
    because another event can get the number then."""
    digest = hashlib.sha256(f"{endpoint_id}/{subject_of(event)}/{event.seq}/{event.type}".encode()).digest()
    return str(ULID(digest[:16]))


def delivery(event: AnyEvent, endpoint_id: str, url: str, body: str, project: str) -> dict[str, Any]:
    """Return the row of an event's delivery to an endpoint."""
    return {
        "id": message_id(event, endpoint_id),
        **dict.fromkeys(_SUBJECTS.values()),
        _SUBJECTS[type(event)]: subject_of(event),
        "endpoint_id": endpoint_id,
        "project": project,
        "receiver": endpoint_id,
        "event_seq": event.seq,
        "event_type": event.type,
        "iteration": event.iteration if isinstance(event, Event) else None,
        "url": url,
        "body": body,
    }


def event_body(event: AnyEvent) -> str:
    """Return the JSON text of an event, which is the same on each call. The event's data is merged into the
    envelope."""
    envelope = {
        "type": event.type,
        "timestamp": rfc3339(event.occurred_at),
        _SUBJECTS[type(event)]: subject_of(event),
        "seq": event.seq,
        **({"iteration": event.iteration} if isinstance(event, Event) else {}),
        "version": event.version,
    }
    return body_text(envelope | event.data | envelope)


def body_text(body: Mapping[str, Any]) -> str:
    """Return a message's JSON text."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False)


def rfc3339(time: datetime) -> str:
    """Format a time like 2026-03-14T09:30:00.000Z."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
