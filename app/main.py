"""The application: `create_app(settings)` for any ASGI server, `serve(settings)` with uvicorn."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

from app import errors
from app.api import ask, catalogue, health, runs, trajectories
from app.body_limit import BodyLimit
from app.logs import configure_logs
from app.runs.runner import Connect, LearnLoop
from app.service import open_service
from app.settings import Settings
from training.learn_loop import learn_loop

MAX_BODY_BYTES = 1_000_000
_DRAIN_S = 10
_SWITCH_INTERVAL_S = 0.001
"""How long a run's thread may hold Python while a request waits; Python's default is 5 ms, several times a request."""


def create_app(settings: Settings, *, connect: Connect | None = None, learn: LearnLoop = learn_loop) -> FastAPI:
    """The service; its lifespan opens the database, the engine and the runner, and closes them.

    `connect` and `learn` take the place of our own backends (then no engine is started) and learn loop.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_service(settings, connect=connect, learn=learn) as service:
            app.state.service = service
            yield

    # FastAPI's own documentation page loads its scripts from the network.
    app = FastAPIOffline(
        redoc_url=None,
        title="Learnloop",
        version="0.1.0",
        lifespan=lifespan,
        redirect_slashes=False,
        strict_content_type=False,
    )
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    errors.install(app)
    for router in (runs.router, trajectories.router, ask.router, catalogue.router, health.router):
        app.include_router(router)

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    return app


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. What `open_service` raises is raised here, not logged as a traceback."""
    configure_logs(settings.log_level, settings.log_format)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with suppress(asyncio.CancelledError):  # stopped while it was starting
        asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        lifespan="off",  # opened below, so that its errors reach the caller
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    opening = asyncio.current_task()
    assert opening is not None
    _on_stop_signals(opening.cancel)
    async with app.router.lifespan_context(app):
        # uvicorn handles the signals itself and raises them once more when it has stopped; closing must go on then.
        _on_stop_signals(lambda: None)
        await uvicorn.Server(config).serve()


def _on_stop_signals(act: Callable[[], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act)
