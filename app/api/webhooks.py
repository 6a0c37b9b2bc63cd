"""Webhooks: endpoints that receive events, and the deliveries to them."""

from typing import Annotated, Any

from fastapi import Depends, Path, Query

from learnloop_service.app.api.dependencies import (
    NO_NUL,
    CurrentCaller,
    CurrentDatabase,
    CurrentEndpoints,
    CurrentSettings,
)
from learnloop_service.app.api.pages import ById, ByNumber
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.tenancy import RUN, require
from learnloop_service.app.db.tables import WebhookEndpoint
from learnloop_service.app.domain.delivery_state import DeliveryState
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.webhooks import (
    AttemptOut,
    DeliveryBrief,
    DeliveryOut,
    EndpointChange,
    EndpointCreated,
    EndpointOut,
    EndpointRequest,
    Replayed,
    ReplayRequest,
    RotateRequest,
    TestResult,
)
from learnloop_service.app.webhooks.deliveries import Deliveries
from learnloop_service.app.webhooks.endpoints import NewEndpoint

router = keyed_router("webhooks", prefix="/webhooks")


async def _deliveries(database: CurrentDatabase) -> Deliveries:
    return Deliveries(database)


AllDeliveries = Annotated[Deliveries, Depends(_deliveries)]
Id = Annotated[str, Path(max_length=64, pattern=NO_NUL, description="Id of the webhook endpoint")]
DeliveryId = Annotated[str, Path(max_length=64, pattern=NO_NUL, description="Id of the delivery")]
RunFilter = Annotated[
    str | None, Query(max_length=64, pattern=NO_NUL, description="Only endpoints of this run. Default: all")
]


@router.post("", status_code=201)
async def create_webhook(
    database: CurrentDatabase,
    settings: CurrentSettings,
    caller: CurrentCaller,
    endpoints: CurrentEndpoints,
    request: EndpointRequest,
) -> EndpointCreated:
    """Create a webhook endpoint. Its secret is shown in this response only."""
    if request.run_id is not None:
        await require(database, caller, RUN, request.run_id)
    caller.project_of(request.project)
    return _created(await endpoints.create(request, caller.project or settings.art_project))


@router.get("")
async def list_webhooks(
    caller: CurrentCaller, endpoints: CurrentEndpoints, paging: ById, run_id: RunFilter = None
) -> Page[EndpointOut]:
    """List webhook endpoints, newest first."""
    project, before = caller.project, paging.cursor
    rows = await endpoints.listed(project=project, run_id=run_id, before=before, limit=paging.fetched)
    return paging.page(rows, _endpoint, lambda row: row.id)


@router.get("/deliveries/{id}")
async def get_delivery(deliveries: AllDeliveries, id: DeliveryId) -> DeliveryOut:
    """Get a delivery with its body and all attempts."""
    row, tries = await deliveries.get(id)
    return DeliveryOut(
        **DeliveryBrief.of(row).model_dump(), body=row.body, tries=[AttemptOut.of(attempt) for attempt in tries]
    )


@router.post("/deliveries/{id}/redeliver", status_code=202)
async def redeliver(deliveries: AllDeliveries, id: DeliveryId) -> DeliveryBrief:
    """Send a delivery again with the same id, whatever its state."""
    return DeliveryBrief.of(await deliveries.redeliver(id))


@router.get("/{id}")
async def get_webhook(endpoints: CurrentEndpoints, id: Id) -> EndpointOut:
    """Get a webhook endpoint."""
    return _endpoint(await endpoints.get(id))


@router.patch("/{id}")
async def change_webhook(endpoints: CurrentEndpoints, id: Id, change: EndpointChange) -> EndpointOut:
    """Change a webhook endpoint: its URL or event types, or enable or disable it."""
    return _endpoint(await endpoints.change(id, change))


@router.delete("/{id}")
async def delete_webhook(endpoints: CurrentEndpoints, id: Id) -> EndpointOut:
    """Delete a webhook endpoint, and return what it was. Waiting deliveries to it are not sent."""
    return _endpoint(await endpoints.remove(id))


@router.post("/{id}/rotate-secret")
async def rotate_secret(endpoints: CurrentEndpoints, id: Id, request: RotateRequest | None = None) -> EndpointCreated:
    """Create a new secret for a webhook endpoint.

    For a while messages are signed with both the old and the new secret, so that the receiver can switch.
    """
    overlap = (request or RotateRequest()).overlap_hours
    return _created(await endpoints.rotate(id, overlap))


@router.post("/{id}/test")
async def send_test(endpoints: CurrentEndpoints, id: Id) -> TestResult:
    """Send a `webhook.test` message now, and return the result."""
    reply = await endpoints.test(id)
    return TestResult(delivered=reply.error is None, status=reply.status, error=reply.error, seconds=reply.seconds)


@router.get("/{id}/deliveries")
async def list_deliveries(
    deliveries: AllDeliveries,
    id: Id,
    paging: ByNumber,
    state: Annotated[DeliveryState | None, Query(description="Only deliveries in this state. Default: all")] = None,
) -> Page[DeliveryBrief]:
    """List the deliveries to a webhook endpoint, newest first."""
    rows = await deliveries.listed(id, state=state, before=paging.before, limit=paging.fetched)
    return paging.page(rows, DeliveryBrief.of, lambda row: row.seq)


@router.post("/{id}/replay", status_code=202)
async def replay(deliveries: AllDeliveries, id: Id, request: ReplayRequest) -> Replayed:
    """Send past events of a run to a webhook endpoint again. Events that it already received keep their message ids."""
    queued, next_after_seq = await deliveries.replay(id, request.run_id, request.after_seq)
    return Replayed(queued=queued, next_after_seq=next_after_seq)


def _endpoint(row: WebhookEndpoint) -> EndpointOut:
    return EndpointOut(**_fields(row))


def _created(new: NewEndpoint) -> EndpointCreated:
    return EndpointCreated(**_fields(new.row), secret=new.secret)


def _fields(row: WebhookEndpoint) -> dict[str, Any]:
    plain = ("id", "project", "run_id", "url", "events", "disabled_at", "disabled_reason", "created_at")
    return {name: getattr(row, name) for name in plain} | {
        "signed": row.secret is not None,
        "previous_secret_until": row.previous_until,
        "enabled": row.disabled_at is None,
    }
