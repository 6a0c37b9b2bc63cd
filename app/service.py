"""The running service and a worker, opened in order and closed in reverse."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from learnloop_service.app.aio.periodic import every
from learnloop_service.app.backends import Connect, usable
from learnloop_service.app.claims.claims import Claims
from learnloop_service.app.db.database import Database, DatabaseUrlError, make_database, make_engine, parse_url
from learnloop_service.app.evaluations.claims import EvaluationClaims
from learnloop_service.app.evaluations.publications import Publications
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.events.feed import EventFeed
from learnloop_service.app.listed_models import log_listed_models
from learnloop_service.app.processes.engine import EngineHandle
from learnloop_service.app.processes.state_file import DamagedFile, read_line, write_line
from learnloop_service.app.releases.watcher import EVERY_S, ReleaseWatcher
from learnloop_service.app.resources import Resources, open_resources
from learnloop_service.app.results.files import ResultsFiles
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.runs.cost import store_price, stored_price
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.app.runs.store import RunStore
from learnloop_service.app.security.address_guard import AddressGuard
from learnloop_service.app.security.secret_box import secret_box, service_key
from learnloop_service.app.security.user_hash import UserHasher
from learnloop_service.app.settings import Settings
from learnloop_service.app.webhooks.dispatcher import Dispatcher
from learnloop_service.app.webhooks.endpoints import Endpoints
from learnloop_service.app.webhooks.frontend import keep_frontend_endpoint
from learnloop_service.app.webhooks.sender import Sender
from learnloop_service.app.worker.drive import Driver, LearnLoop
from learnloop_service.app.worker.evaluations.driver import EvaluationDriver
from learnloop_service.app.worker.evaluations.publisher import EvaluationPublisher
from learnloop_service.app.worker.jobs import EvaluationJobs, RunJobs
from learnloop_service.app.worker.judge_services import judge_services
from learnloop_service.app.worker.own_agents import OwnAgents
from learnloop_service.app.worker.runner import Runner
from learnloop_service.training.loop.learn_loop import learn_loop

_EVALUATIONS = 2
"""Minimum number of evaluations that a worker drives concurrently. They mostly wait for models, and one with a slow
prompted model or agent should not make another project wait."""

_HELD_CONNECTIONS = 2
"""Connections for claims, for reports of runs and for looking at releases, which must not wait for requests'."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class HandlerResources(Resources):
    """Resources of request handlers; `app/api/dependencies.py` provides each handler with what it needs."""

    store: RunStore
    queries: RunQueries
    runner: Runner
    webhooks: Endpoints
    feed: EventFeed
    users: UserHasher


@asynccontextmanager
async def open_service(
    settings: Settings,
    *,
    connect: Connect | None = None,
    learn: LearnLoop = learn_loop,
    engine: EngineHandle | None = None,
) -> AsyncIterator[HandlerResources]:
    """Open the service. The engine starts in the background; whatever needs it waits for it.

    `connect` and `learn` replace our own backends and learn loop. `engine` is a started engine that the caller holds
    (`held_engine`).

    Raises DataDirectoryError, DatabaseUrlError, EmbeddedPostgresError or SchemaError.
    """
    async with AsyncExitStack() as stack:
        resources = await stack.enter_async_context(open_resources(settings, connect, engine))
        box = secret_box(settings.secret_key, settings.data_dir)
        guard = AddressGuard(settings.allowed_private_hosts)
        if settings.machine_price_per_hour is not None:
            await store_price(resources.database, settings.machine_price_per_hour)
        await keep_frontend_endpoint(resources.database, settings.frontend_url, settings.frontend_webhook_secret, box)
        dispatcher = Dispatcher(resources.database, Sender(box, guard))
        stack.push_async_callback(dispatcher.close)
        dispatcher.start()
        direct = settings.direct_database_url
        listened = resources.database_engine.url if direct is None else parse_url(direct.get_secret_value())
        feed = EventFeed(resources.database, listened, on_hint=dispatcher.wake)
        stack.push_async_callback(feed.close)
        feed.start()
        runner = await stack.enter_async_context(_running_jobs(resources, learn, None))
        log_listed_models(resources.settings)
        log.info("service is up", data_dir=str(settings.data_dir))
        if await stored_price(resources.database) is None:
            log.info(
                "runs have no cost of machine time: an hour has no price", set_it_with="--machine-price or /ui/settings"
            )
        yield HandlerResources(
            **vars(resources),
            store=RunStore(resources.database),
            queries=RunQueries(resources.database),
            runner=runner,
            webhooks=Endpoints(resources.database, box, guard),
            feed=feed,
            users=UserHasher(service_key(settings.secret_key, settings.data_dir)),
        )


@asynccontextmanager
async def open_worker(
    settings: Settings,
    *,
    connect: Connect | None = None,
    learn: LearnLoop = learn_loop,
    engine: EngineHandle | None = None,
) -> AsyncIterator[Resources]:
    """Open a worker that drives runs until it is closed and then hands them over. Arguments are as for `open_service`.

    Raises DataDirectoryError, DatabaseUrlError or SchemaError.
    """
    if settings.database_url is None:
        raise DatabaseUrlError("a worker needs DATABASE_URL, the Postgres of the service whose runs it drives")
    price = settings.machine_price_per_hour
    async with open_resources(settings, connect, engine) as resources, _running_jobs(resources, learn, price):
        log_listed_models(resources.settings)
        log.info("worker is up", data_dir=str(settings.data_dir), max_concurrent_runs=settings.max_concurrent_runs)
        yield resources


@asynccontextmanager
async def _running_jobs(resources: Resources, learn: LearnLoop, price_per_hour: float | None) -> AsyncIterator[Runner]:
    """Drive runs and evaluations in this process, and watch releases. The work of the data directory's previous worker
    is taken over without waiting for its leases to expire. `price_per_hour` is as for RunClaims."""
    settings = resources.settings
    lease_engine = make_engine(resources.database_engine.url, _HELD_CONNECTIONS)
    leases = make_database(lease_engine)
    worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    store = EvaluationStore(resources.database)
    publisher = EvaluationPublisher(store, Publications(resources.database), settings)
    runs = _runs(resources, leases, worker, learn, price_per_hour)
    evaluations = _evaluations(resources, leases, worker, store, publisher)
    await _release_predecessor([runs.claims, evaluations.claims], worker, settings.data_dir / "worker")
    runner = Runner(
        resources.database_engine.url,
        [runs, evaluations],
        ttl_s=settings.lease_s,
        phase_timeout_s=settings.phase_timeout_s,
    )
    runner.start()
    if evaluations.slots:
        publisher.start()
    try:
        async with every(EVERY_S, ReleaseWatcher(leases).look_at_due, "look at releases"):
            yield runner
    finally:
        await asyncio.gather(runner.close(), publisher.close())
        await lease_engine.dispose()


def _runs(
    resources: Resources, leases: Database, worker: str, learn: LearnLoop, price_per_hour: float | None
) -> RunJobs:
    settings, database = resources.settings, resources.database
    claims = RunClaims(
        leases,
        worker,
        ttl_s=settings.lease_s,
        limits=Limits(settings.max_runs_per_project, settings.max_runs_per_backend),
        backends=usable(),
        engine=resources.engine_name,
        price_per_hour=price_per_hour,
    )
    driver = Driver(
        database,
        resources.connect,
        judge_services=partial(judge_services, settings, database, asyncio.get_running_loop()),
        results=ResultsFiles(database, settings.data_dir),
        data_dir=settings.data_dir,
        learn=learn,
        tracing=resources.tracing,
        own_agents=OwnAgents(database, settings),
        access=EnvironmentAccess(settings),
    )
    return RunJobs(leases, claims, driver, settings.max_concurrent_runs)


def _evaluations(
    resources: Resources, leases: Database, worker: str, store: EvaluationStore, publisher: EvaluationPublisher
) -> EvaluationJobs:
    settings, database = resources.settings, resources.database
    claims = EvaluationClaims(leases, worker, ttl_s=settings.lease_s, engine=resources.engine_name)
    driver = EvaluationDriver(database, settings, resources.connect, resources.engine)
    slots = max(settings.max_concurrent_runs, _EVALUATIONS) if settings.max_concurrent_runs else 0
    return EvaluationJobs(store, claims, driver, publisher, slots)


async def _release_predecessor(claims: Sequence[Claims[Any]], worker: str, name_file: Path) -> None:
    """Expire the leases of the previous worker. It must be dead, because this process holds its data directory."""
    try:
        if (previous := read_line(name_file, r"\S+:\d+:[0-9a-f]{6}", "the name of a worker")) is not None:
            for table_claims in claims:
                await table_claims.expire(previous)
    except DamagedFile as error:  # nothing is lost: the leases expire by themselves
        log.warning("work of the previous worker is taken over when its leases lapse", error=str(error))
    write_line(name_file, worker)
