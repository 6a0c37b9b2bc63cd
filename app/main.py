"""The ASGI application: `create_app(settings)`."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi_offline import FastAPIOffline
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES

from learnloop_service.app import errors
from learnloop_service.app.aio.periodic import every
from learnloop_service.app.api import (
    agent_sessions,
    agent_tasks,
    ask,
    budgets,
    catalogue,
    comparisons,
    datasets,
    demonstrations,
    documents,
    engine_state,
    evaluations,
    events,
    failures,
    feedback,
    film,
    health,
    imports,
    improvements,
    keys,
    ledger,
    metrics,
    models,
    openai,
    promotions,
    prompts,
    rejudgings,
    releases,
    report_key,
    reports,
    results,
    run_list,
    runs,
    schedules,
    service_settings,
    session_models,
    sign_in,
    start,
    training,
    trajectories,
    user_data,
    webhooks,
    what_ifs,
)
from learnloop_service.app.api.added_routes import added_routes
from learnloop_service.app.api.heavy_reads import HeavyReads
from learnloop_service.app.api.run_documents import open_run_documents
from learnloop_service.app.api.stored_texts import StoredTexts
from learnloop_service.app.auth.callers import open_callers
from learnloop_service.app.auth.failed_keys import FailedKeys
from learnloop_service.app.auth.guard import Guard
from learnloop_service.app.auth.rate_limit import CallerRateLimit
from learnloop_service.app.auth.tenancy import KnownRuns
from learnloop_service.app.backends import Connect
from learnloop_service.app.dashboard import routes as dashboard
from learnloop_service.app.gateway.gateway import open_session_gateway
from learnloop_service.app.http import idempotency
from learnloop_service.app.http import openapi as api_file
from learnloop_service.app.http.body_limit import BodyLimit
from learnloop_service.app.http.connections import Connections, most_connections
from learnloop_service.app.http.idempotency import Idempotency
from learnloop_service.app.http.measured_requests import MeasuredRequests
from learnloop_service.app.http.openai_errors import ModelErrors
from learnloop_service.app.http.protocol import BoundedHttp
from learnloop_service.app.http.response_headers import ResponseHeaders
from learnloop_service.app.http.traced_requests import TracedRequests
from learnloop_service.app.improvements.watcher import improving, watcher_of
from learnloop_service.app.metrics.page import MetricsPage
from learnloop_service.app.model_registry.proxy import open_proxy
from learnloop_service.app.model_registry.trainable import KnownJobs
from learnloop_service.app.operations.prune import prune
from learnloop_service.app.processes.engine import EngineHandle
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.claims import Limits
from learnloop_service.app.schedules.scheduler import looking, scheduler_of
from learnloop_service.app.service import HandlerResources, open_service
from learnloop_service.app.settings import Settings
from learnloop_service.app.worker.drive import LearnLoop
from learnloop_service.training.loop.learn_loop import learn_loop

MAX_BODY_BYTES = 1_000_000
_PARTS = (
    start,
    agent_tasks,
    agent_sessions,
    session_models,  # early, because routes are tried in order and agents call these all the time
    openai,
    documents,
    datasets,
    demonstrations,
    prompts,
    run_list,
    runs,
    comparisons,
    imports,
    film,
    results,
    reports,
    report_key,
    ledger,
    events,
    evaluations,
    failures,
    trajectories,
    ask,
    budgets,
    feedback,
    catalogue,
    webhooks,
    what_ifs,
    keys,
    service_settings,
    sign_in,
    models,
    promotions,
    releases,
    rejudgings,
    improvements,
    schedules,
    user_data,
    training,
    health,
    engine_state,
    metrics,
    dashboard,
)
_COMPRESSED_BYTES = 1_000
"""Replies of at least this many bytes are compressed for clients that accept it."""
_COMPRESSION = 4
"""Level at which JSON of a megabyte takes about ten milliseconds."""
_UNCOMPRESSED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream", "application/x-tar")
"""Media types that are sent as they are: event streams, which must not wait, and weights, which do not get smaller."""
_DRAIN_S = 10
_NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "auto_configure"), False)
"""FastAPI's own spans and logs have queries and bodies, which can contain keys; TracedRequests records neither."""
_PRUNE_EVERY_S = 600
_KEEP_ALIVE_S = 15
"""Longer than clients keep idle connections (httpx: 5 s). If both sides close a connection at the same moment, a
request is lost, and ART's client does not repeat a POST."""


def create_app(
    settings: Settings,
    *,
    connect: Connect | None = None,
    learn: LearnLoop = learn_loop,
    engine: EngineHandle | None = None,
) -> FastAPI:
    """Return the service. Its lifespan opens the database, the engine and the runner, and closes them.

    `connect` and `learn` replace our own backends (then no engine is started) and our learn loop. `engine` is an engine
    that is already running and that the caller stops.
    """

    def lifespan(app: FastAPI) -> AbstractAsyncContextManager[None]:
        return _opened(app, settings, open_service(settings, connect=connect, learn=learn, engine=engine))

    # FastAPI's own documentation page loads its scripts from the internet; this serves them, `api_file` the page.
    app = FastAPIOffline(
        docs_url=None,
        redoc_url=None,
        servers=api_file.SERVERS,
        title="Learnloop",
        version=version("learnloop"),
        lifespan=lifespan,
        redirect_slashes=False,
        strict_content_type=False,
        telemetry=_NO_TELEMETRY,
    )
    app.state.known_runs = KnownRuns()
    app.state.known_jobs = KnownJobs()
    added = list(added_routes())
    app.state.uploads = {path: upload for routes in added for path, upload in routes.uploads.items()}
    _add_middleware(app, settings, {path: upload.max_bytes(settings) for path, upload in app.state.uploads.items()})
    errors.install(app)
    api_file.install(app)
    for router in (*(part.router for part in _PARTS), *(routes.router for routes in added)):
        app.router.routes.extend(router.routes)
    return app


@asynccontextmanager
async def _opened(
    app: FastAPI, settings: Settings, service: AbstractAsyncContextManager[HandlerResources]
) -> AsyncIterator[None]:
    """Open what the handlers use, in the application's state."""
    from learnloop_service.app.datasets.store import index_inboxes_anew

    state = app.state
    limits = Limits(settings.max_runs_per_project, settings.max_runs_per_backend)
    await asyncio.to_thread(index_inboxes_anew, settings.data_dir)
    async with (
        service as state.service,
        open_run_documents(state.service.database, limits) as state.run_documents,
        open_callers(state.service.database, settings) as state.callers,
        idempotency.purging(state.service.database),
        every(_PRUNE_EVERY_S, partial(prune, state.service.database, settings), "prune"),
        open_proxy() as state.proxy,
        open_session_gateway(state.service) as state.session_gateway,
        looking(scheduler_of(state.service, state.proxy.http)),
        improving(watcher_of(state.service, state.proxy.http)),
    ):
        state.heavy_reads = HeavyReads(state.service.database_engine.url)
        state.stored_texts = StoredTexts(state.heavy_reads)
        state.judging = HeavyReads(state.service.database_engine.url)
        state.scoring = HeavyReads(state.service.database_engine.url)
        state.metrics = MetricsPage(state.service)
        yield


@asynccontextmanager
async def open_worker_app(resources: Resources) -> AsyncIterator[FastAPI]:
    """Open a worker's own API: its health, and its metrics for holders of a key."""
    settings = resources.settings
    app = FastAPI(title="Learnloop worker", openapi_url=None, redirect_slashes=False, telemetry=_NO_TELEMETRY)
    app.state.service = resources
    app.state.metrics = MetricsPage(resources)
    limit = CallerRateLimit(settings.rate_per_s, settings.rate_burst) if settings.rate_per_s else None
    app.add_middleware(Guard, required=settings.guarded, limit=limit, failed_keys=_failed_keys(settings))
    app.add_middleware(ResponseHeaders)
    errors.install(app)
    for part in (health, metrics):
        app.router.routes.extend(part.router.routes)
    async with open_callers(resources.database, settings) as app.state.callers:
        yield app


def _failed_keys(settings: Settings) -> FailedKeys | None:
    return FailedKeys(settings.failed_keys_per_minute) if settings.failed_keys_per_minute else None


_RAW = ("/demonstrations", "/imports")
"""Paths whose bodies are not JSON."""


def _add_middleware(app: FastAPI, settings: Settings, uploads: Mapping[str, int]) -> None:
    """Add the middleware. The last one added is the outermost, so the keys are checked before a body is read.

    `uploads` are the paths of packages whose bodies are files, with their limits in bytes.
    """
    limit = CallerRateLimit(settings.rate_per_s, settings.rate_burst) if settings.rate_per_s else None
    big = dict.fromkeys(
        ("/learn-loop", "/graphs", "/scenarios", "/demonstrations", "/imports"), settings.max_graph_bytes
    )
    big |= uploads
    big |= dict.fromkeys(training.JOB_PATHS, settings.max_training_bytes)
    app.add_middleware(Idempotency)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES, big=big, forwarded=training.PREFIX, raw=(*_RAW, *uploads))
    guarded, origins, failed = settings.guarded, settings.cors_origins, _failed_keys(settings)
    app.add_middleware(Guard, required=guarded, limit=limit, failed_keys=failed, origins=origins)
    app.add_middleware(ModelErrors)
    if settings.cors_origins:
        _allow_browsers(app, settings.cors_origins)
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_COMPRESSED_BYTES,
        compresslevel=_COMPRESSION,
        exclude_content_types=_UNCOMPRESSED,
    )
    app.add_middleware(ResponseHeaders)
    app.add_middleware(MeasuredRequests)
    if settings.traced:
        app.add_middleware(TracedRequests)


def _allow_browsers(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages from these origins call the API. Credentials such as cookies are allowed only if origins are named."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_credentials="*" not in origins,
        allow_methods=["GET", "POST", "PATCH", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Content-Disposition", "Idempotency-Replayed", "Retry-After", "X-Request-Id"],
    )


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration. The caller opens the lifespan, so that its errors reach the caller."""
    connections = Connections(most_connections(settings.max_connections), settings.max_connections_per_client)
    protocol: Any = partial(BoundedHttp, connections=connections)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
    )
