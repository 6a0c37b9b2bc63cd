"""Webhook endpoints: creating, changing and deleting them, and their secrets."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.db.clock import database_time
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import Run, WebhookEndpoint
from learnloop_service.app.errors import Conflict, InvalidRequest, existing
from learnloop_service.app.schemas.run_request import RunWebhook
from learnloop_service.app.schemas.webhooks import EndpointChange, EndpointRequest
from learnloop_service.app.security.address_guard import AddressGuard, AddressRefused
from learnloop_service.app.security.secret_box import SecretBox
from learnloop_service.app.security.webhook_signing import new_secret
from learnloop_service.app.webhooks.outbox import body_text, rfc3339
from learnloop_service.app.webhooks.queue import disable
from learnloop_service.app.webhooks.sender import FRONTEND_ID, Receiver, Sender, SendResult

MAX_ENDPOINTS = 100
"""Maximum number per project, not counting those of single runs. Each event is written once for every endpoint."""


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """An endpoint and its secret, which is not shown again."""

    row: WebhookEndpoint
    secret: str


class Endpoints:
    """Endpoints in the database. Methods that take an endpoint's id raise NotFound if there is none."""

    def __init__(self, database: Database, box: SecretBox, guard: AddressGuard) -> None:
        self._database = database
        self._box = box
        self._guard = guard

    async def create(self, request: EndpointRequest, default_project: str) -> NewEndpoint:
        """Create an endpoint. Raises InvalidRequest if the URL is not allowed, NotFound if there is no such run,
        Conflict if the project has too many endpoints."""
        await self._check(request.url, ("body", "url"))
        async with self._database.begin() as tx:
            project = request.project or default_project
            if request.run_id is not None:
                project = await _project_of(tx, request.run_id)
            else:
                await _check_room(tx, project)
            return self._add(tx, request.url, request.events, project, request.run_id)

    async def check(self, hooks: Sequence[RunWebhook]) -> None:
        """Check the URLs before `attach`, outside of its transaction. Raises InvalidRequest if one is not allowed."""
        for number, hook in enumerate(hooks):
            await self._check(hook.url, ("body", "webhooks", number, "url"))

    async def attach(
        self, tx: AsyncSession, run_id: str, project: str, hooks: Sequence[RunWebhook]
    ) -> list[NewEndpoint]:
        """Create the endpoints of a run that is created in this transaction, in the given order. Their URLs must be
        checked before."""
        return [self._add(tx, hook.url, hook.events, project, run_id) for hook in hooks]

    async def listed(
        self, *, project: str | None, run_id: str | None, before: str | None, limit: int
    ) -> Sequence[WebhookEndpoint]:
        """List endpoints of one project or of all projects, newest first; `before` is the id of an endpoint."""
        only = (WebhookEndpoint.project, project), (WebhookEndpoint.run_id, run_id)
        query = newest_first(select(WebhookEndpoint), WebhookEndpoint.id, before, limit, *only)
        async with self._database() as tx:
            return (await tx.execute(query)).scalars().all()

    async def get(self, id: str) -> WebhookEndpoint:
        """Return an endpoint."""
        async with self._database() as tx:
            return await require(tx, id)

    async def change(self, id: str, change: EndpointChange) -> WebhookEndpoint:
        """Change the URL or the events, or disable or enable the endpoint. Raises InvalidRequest or Conflict."""
        if change.url is not None:
            await self._check(change.url, ("body", "url"))
        values: dict[str, Any] = change.model_dump(include={"url", "events"}, exclude_none=True, mode="json")
        if change.enabled:
            values |= {"disabled_at": None, "disabled_reason": None}
        async with self._database.begin() as tx:
            await _require_changeable(tx, id)
            if values:
                await tx.execute(update(WebhookEndpoint).where(WebhookEndpoint.id == id).values(values))
            if change.enabled is False:
                await disable(tx, id, "disabled by request")
            return await require(tx, id)

    async def remove(self, id: str) -> WebhookEndpoint:
        """Delete an endpoint and return it. Its pending deliveries are not sent. Raises Conflict."""
        async with self._database.begin() as tx:
            await _require_changeable(tx, id)
            await disable(tx, id, "the endpoint was deleted")
            removed = await require(tx, id)
            await tx.execute(delete(WebhookEndpoint).where(WebhookEndpoint.id == id))
            return removed

    async def rotate(self, id: str, overlap_hours: float) -> NewEndpoint:
        """Create a new secret. For `overlap_hours`, messages are signed with both the old and the new one. Raises
        Conflict."""
        secret = new_secret()
        values = {
            "secret": self._box.seal(secret, id),
            "previous_secret": WebhookEndpoint.secret,
            "previous_until": func.now() + timedelta(hours=overlap_hours),
        }
        async with self._database.begin() as tx:
            await _require_changeable(tx, id)
            await tx.execute(update(WebhookEndpoint).where(WebhookEndpoint.id == id).values(values))
            return NewEndpoint(await require(tx, id), secret)

    async def test(self, id: str) -> SendResult:
        """Send a `webhook.test` message now, once, independently of queued deliveries."""
        async with self._database() as tx:
            endpoint = await require(tx, id)
        clock = await database_time(self._database)
        now = clock.now()
        body = body_text({"type": "webhook.test", "timestamp": rfc3339(now), "endpoint_id": id})
        sender = Sender(self._box, self._guard)
        try:
            return await sender.send(Receiver.of(endpoint, now), str(ULID()), clock, body)
        finally:
            await sender.close()

    async def _check(self, url: str, loc: Sequence[str | int]) -> None:
        try:
            await self._guard.check(url)
        except AddressRefused as refused:
            raise InvalidRequest(loc, str(refused)) from None

    def _add(self, tx: AsyncSession, url: str, events: Sequence[str], project: str, run_id: str | None) -> NewEndpoint:
        id, secret = str(ULID()), new_secret()
        row = WebhookEndpoint(
            id=id, project=project, run_id=run_id, url=url, events=list(events), secret=self._box.seal(secret, id)
        )
        tx.add(row)
        return NewEndpoint(row, secret)


async def require(tx: AsyncSession, id: str) -> WebhookEndpoint:
    """Return the endpoint's current state. Raises NotFound."""
    return existing(await tx.get(WebhookEndpoint, id, populate_existing=True), "webhook", id)


async def _require_changeable(tx: AsyncSession, id: str) -> None:
    if (await require(tx, id)).id == FRONTEND_ID:
        raise Conflict("Change the settings FRONTEND_URL and FRONTEND_WEBHOOK_SECRET, which define this webhook.")


async def _project_of(tx: AsyncSession, run_id: str) -> str:
    query = select(Run.model_project).where(Run.id == run_id)
    return existing((await tx.execute(query)).scalar_one_or_none(), "run", run_id)


async def _check_room(tx: AsyncSession, project: str) -> None:
    of_project = select(func.count()).where(WebhookEndpoint.project == project, WebhookEndpoint.run_id.is_(None))
    if (await tx.execute(of_project)).scalar_one() >= MAX_ENDPOINTS:
        raise Conflict(f"Project {project} already has {MAX_ENDPOINTS} webhooks; delete one first.")
