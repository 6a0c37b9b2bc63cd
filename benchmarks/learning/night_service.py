"""The service for simulated nights, in this process: its loops look when they are told to, and the clock of its
database stands still until it is set."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import httpx
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from benchmarks.durability.harness import Migrated, migrated
from benchmarks.learning.night_worlds import NightBackend, NightWorld
from benchmarks.releases.outcome_store import set_clock, simulate_clock
from learnloop_service.app import service as service_module
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Promotion, Run
from learnloop_service.app.domain.run_state import TERMINAL
from learnloop_service.app.main import create_app
from learnloop_service.app.releases.watcher import ReleaseWatcher
from learnloop_service.app.schedules import scheduler as scheduler_module
from learnloop_service.app.schedules.scheduler import Scheduler, scheduler_of
from learnloop_service.app.schemas import releases as releases_module
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import ModelSpec
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.stored_request import stored_request, stored_run
from tests.integration.app.served import settings_for

T = TypeVar("T")
_NEVER_S, _ATTEMPTS = 1e6, 5
_DEFAULTS = r"""
SELECT format('ALTER TABLE %I ALTER COLUMN %I SET DEFAULT simulated.%s', table_name, column_name,
    replace(column_default, 'pg_catalog.', ''))
FROM information_schema.columns
WHERE table_schema = 'public' AND column_default ~ '^(pg_catalog\.)?(now|clock_timestamp)\(\)$'
"""


@dataclass(frozen=True)
class NightService:
    """A running service."""

    client: httpx.AsyncClient
    database: Database
    backend: NightBackend
    scheduler: Scheduler
    watcher: ReleaseWatcher

    async def set_clock(self, at: datetime) -> None:
        """Let it be that time for the database."""
        await set_clock(self.database, at)

    async def learn(self) -> None:
        """Do what is due: start a run, wait for it, and start what follows it."""
        await again(self.scheduler.look)
        while await self._is_learning():
            await asyncio.sleep(0.02)
        await again(self.scheduler.look)

    async def look(self) -> None:
        """Look at the releases that are due."""
        await again(self.watcher.look_at_due)

    async def _is_learning(self) -> bool:
        async with self.database() as tx:
            states = (await tx.execute(select(Run.status))).scalars().all()
        return any(state not in TERMINAL for state in states)

    async def get(self, path: str, **query: Json) -> Json:
        """Return the reply to a GET."""
        return (await self.client.get(path, params=query)).raise_for_status().json()


@asynccontextmanager
async def night_service(
    directory: Path, world: NightWorld, effect: float, ramp: Sequence[float], began: datetime
) -> AsyncIterator[NightService]:
    """Run the service in a world, with the checkpoint bench/start@0 as bench/live."""
    for module, name in ((service_module, "EVERY_S"), (scheduler_module, "LOOK_EVERY_S")):
        setattr(module, name, _NEVER_S)
    setattr(releases_module, "RAMP", tuple(ramp))  # noqa: B010 - a schedule's releases have the default ramp
    backend = NightBackend(world, effect, "")

    async def describe(_: Json) -> Reply:
        return Reply(body={"status": "ok", "data": backend.described()})

    async with migrated(directory) as store, scripted_chat(describe) as chat:
        backend.endpoint_url = chat.url
        await simulate_clock(store)
        await _simulate_defaults(store)
        await set_clock(store.database, began)
        settings = settings_for(directory, store.url, engine_url=chat.url.removesuffix("/v1"))
        app = create_app(settings, connect=backend.connect)
        async with app.router.lifespan_context(app):
            service = app.state.service
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                await _promote(service.database, backend)
                scheduler = scheduler_of(service, app.state.proxy.http)
                yield NightService(client, service.database, backend, scheduler, ReleaseWatcher(service.database))


async def again(work: Callable[[], Awaitable[T]]) -> T:
    """Do it again if the database gave up on this process: on a starved machine a transaction can idle for too long.
    The work must be a transaction, which does everything or nothing."""
    for _ in range(_ATTEMPTS):
        with suppress(DBAPIError):
            return await work()
    return await work()


async def _promote(database: Database, backend: NightBackend) -> None:
    await backend.register(ModelSpec("bench", "start", "learnloop/tiny"))
    model = {"project": "bench", "name": "start", "base_model": "learnloop/tiny"}
    names = {f"model_{name}" if name != "base_model" else name: value for name, value in model.items()}
    promotion = {"project": "bench", "name": "live", "backend": "embedded", "model_name": "start", "step": 0}
    async with database.begin() as tx:
        tx.add(stored_run(status="completed", request=stored_request(model=model), backend="embedded", **names))
        tx.add(Promotion(**promotion, actor="local"))


async def _simulate_defaults(store: Migrated) -> None:
    async with store.engine.begin() as connection:
        for statement in (await connection.execute(text(_DEFAULTS))).scalars().all():
            await connection.execute(text(statement))
