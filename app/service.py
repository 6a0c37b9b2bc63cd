"""Everything that lives as long as the service: opened in order, closed in reverse."""

import asyncio
import gc
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from app.address_guard import AddressGuard
from app.data_directory import DataDirectory
from app.db import DatabaseUrlError, Sessions, make_engine, make_sessions, migrate, parse_url
from app.embedded_postgres import EmbeddedPostgres
from app.engine_process import EngineProcess
from app.errors import DATABASE_DOWN
from app.event_feed import EventFeed
from app.judging import judge_services
from app.runs.drive import Connect, Driver, LearnLoop
from app.runs.leases import Leases, Limits
from app.runs.own_thread import on_loop
from app.runs.queries import RunQueries
from app.runs.results_files import ResultsFiles
from app.runs.runner import Runner
from app.runs.store import RunStore
from app.secret_box import secret_box
from app.settings import Settings
from app.tracing import weave_tracer
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.endpoints import Endpoints
from app.webhooks.frontend import keep_frontend_endpoint
from app.webhooks.sender import Sender
from environment.trace import Tracer
from training.backends import registry
from training.backends.base import Backend
from training.learn_loop import learn_loop

_DATABASE_START_S = 30.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Service:
    """What request handlers use."""

    settings: Settings
    database: AsyncEngine
    sessions: Sessions
    store: RunStore
    queries: RunQueries
    engine: EngineProcess
    runner: Runner
    connect: Connect
    webhooks: Endpoints
    feed: EventFeed
    tracer: Tracer | None
    """Receives the spans of runs and asks; None: nobody wants them."""


@asynccontextmanager
async def open_service(
    settings: Settings, *, connect: Connect | None = None, learn: LearnLoop = learn_loop
) -> AsyncIterator[Service]:
    """The running service. The engine comes up behind it: whoever needs it waits for it.

    `connect` and `learn` take the place of our own backends and learn loop.

    Raises DataDirectoryError, DatabaseUrlError, EmbeddedPostgresError or SchemaError.
    """
    async with AsyncExitStack() as stack:
        stack.callback(DataDirectory(settings.data_dir).release)
        engine = EngineProcess(settings)
        stack.push_async_callback(engine.stop)
        if connect is None:
            await engine.start()
            connect = partial(_connect, engine, asyncio.get_running_loop())
        database = make_engine(await _database_url(settings, stack))
        stack.push_async_callback(database.dispose)
        await _migrate(database)
        sessions = make_sessions(database)
        box, guard = secret_box(settings), AddressGuard(settings.allowed_private_hosts)
        await keep_frontend_endpoint(sessions, settings, box)
        dispatcher = Dispatcher(sessions, Sender(box, guard))
        stack.push_async_callback(dispatcher.close)
        dispatcher.start()
        tracer = weave_tracer(settings)
        if tracer is not None:
            stack.push_async_callback(tracer.close)
        feed = EventFeed(sessions, database.url, on_hint=dispatcher.wake)
        stack.push_async_callback(feed.close)
        feed.start()
        runner = await _runner(settings, sessions, database.url, connect, tracer, learn)
        stack.push_async_callback(runner.close)
        runner.start()
        warm_up = asyncio.create_task(asyncio.to_thread(_warm_up), name="warm-up")
        log.info("service is up", data_dir=str(settings.data_dir))
        yield Service(
            settings,
            database,
            sessions,
            RunStore(sessions),
            RunQueries(sessions),
            engine,
            runner,
            connect,
            Endpoints(sessions, box, guard),
            feed,
            tracer,
        )
        warm_up.cancel()


async def _runner(
    settings: Settings, sessions: Sessions, url: URL, connect: Connect, tracer: Tracer | None, learn: LearnLoop
) -> Runner:
    """This process as a worker. The runs of the one that held the data directory before it are free at once."""
    leases = Leases(
        sessions,
        worker=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
        ttl_s=settings.lease_s,
        limits=Limits(settings.max_runs_per_project, settings.max_runs_per_backend),
        backends=registry.names(),
        engine=f"{socket.gethostname()}:{settings.data_dir}",
    )
    driver = Driver(
        sessions,
        connect,
        judge_services=partial(judge_services, settings, sessions, asyncio.get_running_loop()),
        results=ResultsFiles(sessions, settings.data_dir),
        data_dir=settings.data_dir,
        learn=learn,
        tracer=tracer,
    )
    await _succeed(leases, settings.data_dir / "worker")
    return Runner(
        sessions,
        url,
        leases,
        driver,
        max_concurrent=settings.max_concurrent_runs,
        phase_timeout_s=settings.phase_timeout_s,
    )


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
        raise DatabaseUrlError(f"no database after {_DATABASE_START_S:.0f} s: {said}") from error


async def _connect(engine: EngineProcess, home: asyncio.AbstractEventLoop, backend: str) -> Backend:
    """The backend of that name, on our engine. From any thread. Raises EngineUnavailable, BackendUnavailable."""
    address = await on_loop(home, engine.address())
    return await registry.connect(backend, engine_url=address.url, engine_key=address.key)


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
