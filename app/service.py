"""Everything that lives as long as the service or a worker: opened in order, closed in reverse."""

import asyncio
import gc
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from app.backends import Backends, Connect, usable
from app.db.session import DatabaseUrlError, Sessions, make_engine, make_sessions, migrate, parse_url
from app.errors import DATABASE_DOWN
from app.events.feed import EventFeed
from app.processes.engine import Engine, held_engine
from app.processes.postgres import EmbeddedPostgres
from app.results.files import ResultsFiles
from app.results.folders import remove_leftovers
from app.runs.leases import Leases, Limits
from app.runs.queries import RunQueries
from app.runs.store import RunStore
from app.security.address_guard import AddressGuard
from app.security.secret_box import secret_box
from app.settings import Settings
from app.tracing.tracer import Tracing, open_tracing
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.endpoints import Endpoints
from app.webhooks.frontend import keep_frontend_endpoint
from app.webhooks.sender import Sender
from app.worker.drive import Driver, LearnLoop
from app.worker.judge_services import judge_services
from app.worker.runner import Runner
from training.learn_loop import learn_loop

_DATABASE_START_S = 30.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Foundation:
    """What the API and a worker stand on."""

    settings: Settings
    database: AsyncEngine
    sessions: Sessions
    engine: Engine
    engine_name: str
    """What leases call the engine that we reach."""
    connect: Connect
    tracing: Tracing
    """Receives the spans of runs and asks; None: nobody wants them."""

    def reaches(self, engine: str | None) -> bool:
        """Whether we reach the engine of that name; None: any will do."""
        return engine in (None, self.engine_name)


@dataclass(frozen=True)
class Service(Foundation):
    """What request handlers use."""

    store: RunStore
    queries: RunQueries
    runner: Runner
    webhooks: Endpoints
    feed: EventFeed


@asynccontextmanager
async def open_service(
    settings: Settings,
    *,
    connect: Connect | None = None,
    learn: LearnLoop = learn_loop,
    engine: Engine | None = None,
) -> AsyncIterator[Service]:
    """The running service. The engine comes up behind it: whoever needs it waits for it.

    `connect` and `learn` take the place of our own backends and learn loop. `engine` is one that the caller holds
    (`held_engine`) and has started.

    Raises DataDirectoryError, DatabaseUrlError, EmbeddedPostgresError or SchemaError.
    """
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(_foundation(settings, connect, engine))
        box = secret_box(settings.secret_key, settings.data_dir)
        guard = AddressGuard(settings.allowed_private_hosts)
        await keep_frontend_endpoint(base.sessions, settings.frontend_url, settings.frontend_webhook_secret, box)
        dispatcher = Dispatcher(base.sessions, Sender(box, guard))
        stack.push_async_callback(dispatcher.close)
        dispatcher.start()
        feed = EventFeed(base.sessions, base.database.url, on_hint=dispatcher.wake)
        stack.push_async_callback(feed.close)
        feed.start()
        runner = await stack.enter_async_context(_driving(base, learn))
        log.info("service is up", data_dir=str(settings.data_dir))
        yield Service(
            **{each.name: getattr(base, each.name) for each in fields(base)},
            store=RunStore(base.sessions),
            queries=RunQueries(base.sessions),
            runner=runner,
            webhooks=Endpoints(base.sessions, box, guard),
            feed=feed,
        )


@asynccontextmanager
async def open_worker(
    settings: Settings,
    *,
    connect: Connect | None = None,
    learn: LearnLoop = learn_loop,
    engine: Engine | None = None,
) -> AsyncIterator[None]:
    """A worker that drives runs while this is open, and hands them over at the end; the arguments as above.

    Raises DataDirectoryError, DatabaseUrlError or SchemaError.
    """
    if settings.database_url is None:
        raise DatabaseUrlError("a worker needs DATABASE_URL, the Postgres of the service whose runs it drives")
    async with _foundation(settings, connect, engine) as base, _driving(base, learn):
        log.info("worker is up", data_dir=str(settings.data_dir), at_once=settings.max_concurrent_runs)
        yield


@asynccontextmanager
async def _foundation(settings: Settings, connect: Connect | None, engine: Engine | None) -> AsyncIterator[Foundation]:
    async with AsyncExitStack() as stack:
        if engine is None:
            engine = await stack.enter_async_context(held_engine(settings, start=connect is None))
        if connect is None:
            backends = Backends(settings, engine)
            stack.push_async_callback(backends.stop)
            connect = backends.connect
        database = make_engine(await _database_url(settings, stack))
        stack.push_async_callback(database.dispose)
        await _migrate(database)
        sessions = make_sessions(database)
        await remove_leftovers(sessions, settings.data_dir, _database_name(settings))
        tracing = open_tracing(settings)
        stack.push_async_callback(tracing.close)
        warm_up = asyncio.create_task(asyncio.to_thread(_warm_up), name="warm-up")
        stack.callback(warm_up.cancel)
        yield Foundation(settings, database, sessions, engine, _engine_name(settings), connect, tracing)


@asynccontextmanager
async def _driving(base: Foundation, learn: LearnLoop) -> AsyncIterator[Runner]:
    """This process as a worker. The runs of the one that held the data directory before it are free at once."""
    settings, sessions = base.settings, base.sessions
    leases = Leases(
        sessions,
        worker=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
        ttl_s=settings.lease_s,
        limits=Limits(settings.max_runs_per_project, settings.max_runs_per_backend),
        backends=usable(settings),
        engine=base.engine_name,
    )
    driver = Driver(
        sessions,
        base.connect,
        judge_services=partial(judge_services, settings, sessions, asyncio.get_running_loop()),
        results=ResultsFiles(sessions, settings.data_dir),
        data_dir=settings.data_dir,
        learn=learn,
        tracing=base.tracing,
    )
    await _succeed(leases, settings.data_dir / "worker")
    runner = Runner(
        sessions,
        base.database.url,
        leases,
        driver,
        max_concurrent=settings.max_concurrent_runs,
        phase_timeout_s=settings.phase_timeout_s,
    )
    runner.start()
    try:
        yield runner
    finally:
        await runner.close()


def _engine_name(settings: Settings) -> str:
    """A shared engine is called by its URL. An own one keeps the name that it got first, wherever its data directory
    is used later: its models are in there."""
    if settings.engine_url is not None:
        return str(settings.engine_url)
    file = settings.data_dir / "engine-name"
    if not file.exists():
        file.write_text(f"{socket.gethostname()}:{settings.data_dir}")
    return file.read_text()


def _database_name(settings: Settings) -> str:
    if settings.database_url is None:
        return "embedded"
    url = parse_url(settings.database_url.get_secret_value())
    return f"{url.host or url.query.get('host', '')}:{url.port or 5432}/{url.database}"


async def _succeed(leases: Leases, name_file: Path) -> None:
    """Free the runs of the worker before us: it is dead, as we hold its data directory."""
    with suppress(FileNotFoundError):
        await leases.expire(name_file.read_text())
    name_file.write_text(leases.worker)


async def _migrate(database: AsyncEngine) -> None:
    """Wait a while for a database that starts when we do. Raises DatabaseUrlError, SchemaError."""
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(DATABASE_DOWN),
        wait=wait_fixed(1),
        stop=stop_after_delay(_DATABASE_START_S),
        before_sleep=lambda _: log.warning("waiting for the database"),
        reraise=True,
    )
    try:
        async for attempt in retrying:
            with attempt:
                await migrate(database)
    except DATABASE_DOWN as error:
        said = str(error.__cause__ or error).splitlines()[0]
        raise DatabaseUrlError(f"the database was unreachable for {_DATABASE_START_S:.0f} s: {said}") from error


async def _database_url(settings: Settings, stack: AsyncExitStack) -> URL:
    if settings.database_url is not None:
        return parse_url(settings.database_url.get_secret_value())
    postgres = EmbeddedPostgres(settings.data_dir)
    stack.push_async_callback(postgres.stop)
    await postgres.start()
    return postgres.url


def _warm_up() -> None:
    """Import ART behind the start: it takes seconds, and the first run needs it.

    What is there then stays for good: collecting garbage among it would hold up requests for 0.2 s.
    """
    from training.backends.art_import import import_art

    import_art()
    gc.collect()
    gc.freeze()
