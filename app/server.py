"""The server processes: `serve(settings)` runs the API and also drives runs; `work(settings)` only drives runs.

A restart takes as long as its slowest part, so the engine starts first and loads while this process imports modules.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from socket import socket
from typing import TYPE_CHECKING, Any

import psutil
import structlog
import uvloop

from learnloop_service.app.http.connections import raise_file_limit
from learnloop_service.app.logs import configure_logs
from learnloop_service.app.processes.engine import EngineHandle, held_engine
from learnloop_service.app.processes.listening import taken_port
from learnloop_service.app.settings import Settings
from learnloop_service.training.garbage import freeze_gc, look_seldom_at_everything

if TYPE_CHECKING:
    import uvicorn

_SWITCH_INTERVAL_S = 0.001
"""Python's thread switch interval, in seconds: how long a run's thread can hold the GIL while a request waits. Python's
default of 5 ms is several times the duration of a request."""


log = structlog.get_logger(__name__)


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. Errors of `open_service` are raised, not logged with a traceback.

    Also raises CannotListen, before anything is started that would have to be stopped.
    """
    with taken_port(settings.host, settings.port) as sockets:
        _run(settings, partial(_serve, sockets))


def work(settings: Settings) -> None:
    """Drive runs until SIGINT or SIGTERM, then hand them over and return. Errors of `open_worker` are raised.

    Also raises CannotListen if the settings have a port for metrics.
    """
    if settings.metrics_port is None:
        _run(settings, partial(_work, None))
    else:
        with taken_port(settings.host, settings.metrics_port) as sockets:
            _run(settings, partial(_work, sockets))


def _run(settings: Settings, body: Callable[[Settings, EngineHandle, "_StopLimit"], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        opening = asyncio.current_task()
        assert opening is not None
        _on_stop_signals(limit.begin, opening.cancel)
        async with held_engine(settings) as engine:
            await body(settings, engine, limit)

    limit = _StopLimit(settings)
    configure_logs(settings.log_level, settings.log_format)
    raise_file_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    look_seldom_at_everything()
    # A stop during startup cancels the task.
    with limit, suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(opened())


class _StopLimit:
    """Limits how long a stop takes: after the limit, everything that still runs is killed. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._timer = threading.Timer(settings.stop_timeout_s, _kill_everything, (settings,))
        self._timer.daemon = True

    def begin(self) -> None:
        """Start the countdown. Later calls have no effect."""
        if not self._timer.is_alive():
            with suppress(RuntimeError):  # the timer was cancelled
                self._timer.start()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _kill_everything(settings: Settings) -> None:
    """Kill all our child processes, frozen or not, and this process. Committed work is not lost."""
    from learnloop_service.app.processes.postgres import kill_server  # importing it takes a while at the start

    log.error("the stop took too long: killing everything that was started", timeout_s=settings.stop_timeout_s)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    if settings.database_url is None:
        kill_server(settings.data_dir / "postgres")
    os._exit(1)


async def _serve(sockets: Sequence[socket], settings: Settings, engine: EngineHandle, limit: _StopLimit) -> None:
    main = await asyncio.to_thread(_import, "learnloop_service.app.main")
    app = main.create_app(settings, engine=engine)
    async with app.router.lifespan_context(app):

        def leave() -> None:
            app.state.service.leave()
            app.state.service.feed.end()  # an open event stream would use up the time to stop

        await _serve_http(main.server_config(app, settings), sockets, limit, leave)


async def _serve_http(
    config: "uvicorn.Config", sockets: Sequence[socket], limit: _StopLimit, *leave: Callable[[], object]
) -> None:
    """Answer requests until a stop signal, then call `leave` and finish the requests in progress."""
    import uvicorn

    # uvicorn handles the signals itself and raises them again once it has stopped. That must not interrupt the cleanup.
    _on_stop_signals(limit.begin)
    server = uvicorn.Server(config)
    begin_to_stop = server.shutdown

    async def shutdown(sockets: list[socket] | None = None) -> None:
        for callback in (limit.begin, *leave):
            callback()
        await begin_to_stop(sockets)

    server.shutdown = shutdown  # type: ignore[method-assign]
    await server.serve(list(sockets))


async def _work(sockets: Sequence[socket] | None, settings: Settings, engine: EngineHandle, limit: _StopLimit) -> None:
    service = await asyncio.to_thread(_import, "learnloop_service.app.service")
    async with service.open_worker(settings, engine=engine) as resources:
        if sockets is None:
            stop = asyncio.Event()
            _on_stop_signals(limit.begin, stop.set)
            await stop.wait()
        else:
            main = await asyncio.to_thread(_import, "learnloop_service.app.main")
            async with main.open_worker_app(resources) as app:
                await _serve_http(main.server_config(app, settings), sockets, limit)


def _import(module: str) -> Any:
    with freeze_gc():
        return import_module(module)


def _on_stop_signals(*acts: Callable[[], object]) -> None:
    def act() -> None:
        for callback in acts:
            callback()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act)
