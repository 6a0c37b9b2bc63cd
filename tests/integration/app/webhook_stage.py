"""Runs, endpoints, events and dispatchers on a real database, without the rest of the service."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select, update

from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.db.migration import migrate
from learnloop_service.app.db.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.events.log import append
from learnloop_service.app.security.address_guard import AddressGuard
from learnloop_service.app.security.secret_box import SecretBox
from learnloop_service.app.webhooks.dispatcher import Dispatcher
from learnloop_service.app.webhooks.endpoints import Endpoints, NewEndpoint
from learnloop_service.app.webhooks.sender import Sender
from tests.conditions import answered
from tests.fakes.stored_request import stored_run

BOX = SecretBox(b"a key for tests that nobody guesses")
HERE = AddressGuard(["127.0.0.0/8"])


@dataclass
class Stage:
    """What is on the database, and the dispatchers that a test started."""

    database: Database
    endpoints: Endpoints
    dispatchers: list[Dispatcher] = field(default_factory=list)

    async def run(self, project: str = "p") -> str:
        """A run that nobody works on."""
        row = stored_run(model_project=project, backend="b")
        async with self.database.begin() as tx:
            tx.add(row)
            return row.id

    async def endpoint(self, url: str, *events: str, project: str = "p", run_id: str | None = None) -> NewEndpoint:
        """An endpoint whose URL nobody checked."""
        async with self.database.begin() as tx:
            new = self.endpoints._add(tx, url, events, project, run_id)
        return new

    async def event(self, run_id: str, type: EventType = EventType.PHASE_COMPLETED, **data: Any) -> int:
        """An event of a run, as whoever works on it appends it; its number."""
        async with self.database.begin() as tx:
            return await append(tx, run_id, type, "local", data)

    def dispatcher(self, *, timeout_s: float = 15.0, guard: AddressGuard = HERE, **options: Any) -> Dispatcher:
        """A dispatcher at work."""
        dispatcher = Dispatcher(self.database, Sender(BOX, guard, timeout_s), **options)
        dispatcher.start()
        self.dispatchers.append(dispatcher)
        return dispatcher

    async def deliveries(self) -> Sequence[WebhookDelivery]:
        """All, in the order of their making."""
        async with self.database() as tx:
            return (await tx.execute(select(WebhookDelivery).order_by(WebhookDelivery.seq))).scalars().all()

    async def attempts(self, delivery_id: str | None = None) -> Sequence[WebhookAttempt]:
        """All, or those of one delivery, in order."""
        query = select(WebhookAttempt).order_by(WebhookAttempt.delivery_id, WebhookAttempt.number)
        if delivery_id is not None:
            query = query.where(WebhookAttempt.delivery_id == delivery_id)
        async with self.database() as tx:
            return (await tx.execute(query)).scalars().all()

    async def settled(self, timeout_s: float = 30) -> Sequence[WebhookDelivery]:
        """All deliveries once none waits any more."""
        found: Sequence[WebhookDelivery] = await answered(
            self.deliveries, lambda rows: all(row.state != "pending" for row in rows), timeout_s
        )
        return found

    async def due_now(self, delivery_id: str) -> None:
        """Let the time until a delivery's next attempt pass."""
        at_once = update(WebhookDelivery).where(WebhookDelivery.id == delivery_id)
        async with self.database.begin() as tx:
            await tx.execute(at_once.values(next_attempt_at=datetime.fromtimestamp(0).astimezone()))

    async def shown(self, endpoint_id: str) -> WebhookEndpoint:
        """An endpoint as it is now."""
        return await self.endpoints.get(endpoint_id)


@asynccontextmanager
async def stage(database_url: str) -> AsyncIterator[Stage]:
    """A migrated database; dispatchers that are still at work at the end are closed."""
    engine = make_engine(parse_url(database_url))
    await migrate(engine)
    database = make_database(engine)
    it = Stage(database, Endpoints(database, BOX, HERE))
    try:
        yield it
    finally:
        for dispatcher in it.dispatchers:
            await dispatcher.close(grace_s=0)
        await engine.dispose()
