"""The running service, and a worker: opened in order, closed in reverse."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from app.backends import Connect, usable
from app.db.session import DatabaseUrlError
from app.evaluations.publications import Publications
from app.evaluations.store import EvaluationStore
from app.events.feed import EventFeed
from app.listed_models import log_listed_models
from app.processes.engine import Engine
from app.processes.state_file import DamagedFile, read_line, write_line
from app.resources import Resources, open_resources
from app.results.files import ResultsFiles
from app.runs.environment_access import EnvironmentAccess
from app.runs.leases import Leases, Limits
from app.runs.queries import RunQueries
from app.runs.store import RunStore
from app.security.address_guard import AddressGuard
from app.security.secret_box import secret_box
from app.settings import Settings
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.endpoints import Endpoints
from app.webhooks.frontend import keep_frontend_endpoint
from app.webhooks.sender import Sender
from app.worker.drive import Driver, LearnLoop
from app.worker.evaluation_driver import EvaluationDriver
from app.worker.evaluation_publisher import EvaluationPublisher
from app.worker.evaluation_runner import EvaluationRunner
from app.worker.judge_services import judge_services
from app.worker.own_agents import OwnAgents
from app.worker.runner import Runner
from training.learn_loop import learn_loop

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Service(Resources):
    """What request handlers use; `app/api/dependencies.py` gives each of them its part."""

    store: RunStore
    queries: RunQueries
    runner: Runner
    evaluations: EvaluationRunner
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
    """The running service. The engine starts in the background: what needs it waits for it.

    `connect` and `learn` replace our own backends and learn loop. `engine` is one that the caller holds
    (`held_engine`) and has started.

    Raises DataDirectoryError, DatabaseUrlError, EmbeddedPostgresError or SchemaError.
    """
    async with AsyncExitStack() as stack:
        resources = await stack.enter_async_context(open_resources(settings, connect, engine))
        box = secret_box(settings.secret_key, settings.data_dir)
        guard = AddressGuard(settings.allowed_private_hosts)
        await keep_frontend_endpoint(resources.sessions, settings.frontend_url, settings.frontend_webhook_secret, box)
        dispatcher = Dispatcher(resources.sessions, Sender(box, guard))
        stack.push_async_callback(dispatcher.close)
        dispatcher.start()
        feed = EventFeed(resources.sessions, resources.database_engine.url, on_hint=dispatcher.wake)
        stack.push_async_callback(feed.close)
        feed.start()
        runner, evaluations = await stack.enter_async_context(_driving(resources, learn))
        log_listed_models(settings)
        log.info("service is up", data_dir=str(settings.data_dir))
        yield Service(
            **vars(resources),
            store=RunStore(resources.sessions),
            queries=RunQueries(resources.sessions),
            runner=runner,
            evaluations=evaluations,
            webhooks=Endpoints(resources.sessions, box, guard),
            feed=feed,
        )


@asynccontextmanager
async def open_worker(
    settings: Settings,
    *,
    connect: Connect | None = None,
    learn: LearnLoop = learn_loop,
    engine: Engine | None = None,
) -> AsyncIterator[Resources]:
    """A worker that drives runs while this is open, and hands them over at the end. Arguments as for `open_service`.

    Raises DataDirectoryError, DatabaseUrlError or SchemaError.
    """
    if settings.database_url is None:
        raise DatabaseUrlError("a worker needs DATABASE_URL, the Postgres of the service whose runs it drives")
    async with open_resources(settings, connect, engine) as resources, _driving(resources, learn):
        log_listed_models(settings)
        log.info("worker is up", data_dir=str(settings.data_dir), max_concurrent_runs=settings.max_concurrent_runs)
        yield resources


@asynccontextmanager
async def _driving(resources: Resources, learn: LearnLoop) -> AsyncIterator[tuple[Runner, EvaluationRunner]]:
    """Drive runs and evaluations in this process, those of the data directory's previous worker among them, without
    waiting for their leases to lapse."""
    settings, sessions = resources.settings, resources.sessions
    leases = Leases(
        sessions,
        worker=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
        ttl_s=settings.lease_s,
        limits=Limits(settings.max_runs_per_project, settings.max_runs_per_backend),
        backends=usable(settings),
        engine=resources.engine_name,
    )
    driver = Driver(
        sessions,
        resources.connect,
        judge_services=partial(judge_services, settings, sessions, asyncio.get_running_loop()),
        results=ResultsFiles(sessions, settings.data_dir),
        data_dir=settings.data_dir,
        learn=learn,
        tracing=resources.tracing,
        own_agents=OwnAgents(sessions, settings),
        access=EnvironmentAccess(settings),
    )
    store = EvaluationStore(sessions)
    await _release_predecessor(leases, store, settings.data_dir / "worker")
    runner = Runner(
        sessions,
        resources.database_engine.url,
        leases,
        driver,
        max_concurrent=settings.max_concurrent_runs,
        phase_timeout_s=settings.phase_timeout_s,
    )
    evaluations = EvaluationRunner(
        store,
        EvaluationDriver(sessions, settings, resources.connect, resources.engine),
        EvaluationPublisher(store, Publications(sessions), settings),
        worker=leases.worker,
        engine=resources.engine_name,
        ttl_s=settings.lease_s,
    )
    runner.start()
    if settings.max_concurrent_runs:
        evaluations.start()
    try:
        yield runner, evaluations
    finally:
        await asyncio.gather(runner.close(), evaluations.close())


async def _release_predecessor(leases: Leases, evaluations: EvaluationStore, name_file: Path) -> None:
    """End the leases of the previous worker: it is dead, as we hold its data directory."""
    try:
        if (previous := read_line(name_file, r"\S+:\d+:[0-9a-f]{6}", "the name of a worker")) is not None:
            await leases.expire(previous)
            await evaluations.expire(previous)
    except DamagedFile as error:  # nothing is lost: its leases lapse
        log.warning("runs of the previous worker are taken over when their leases lapse", error=str(error))
    write_line(name_file, leases.worker)
