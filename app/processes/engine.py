"""Starts and supervises the engine: the child process that samples and trains.

    python -m learnloop_service.training.engine

One engine works in a data directory. It listens on loopback with a key that is new at each start of the service. If it
dies, it is restarted on the same port. If it keeps dying, callers get an error with its last log lines, and the next
call starts it again. Its health is polled all the time, and its event loop can answer even during training. An engine
that does not answer counts as unresponsive and is restarted after `LEARNLOOP_RESTART_AFTER_S`, as is one that does not
listen within ten minutes of its start.
"""

import asyncio
import contextlib
import json
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import structlog

from learnloop.http_settings import route
from learnloop_service.app.aio.pulse import Pulse, Trouble
from learnloop_service.app.errors import Unavailable
from learnloop_service.app.processes import child as child_process
from learnloop_service.app.processes.cores import usable_cores
from learnloop_service.app.processes.data_directory import DataDirectory
from learnloop_service.app.settings import Settings

KEY_VARIABLE = "LEARNLOOP_ENGINE_KEY"
_QUICK_DEATHS = 5
"""Number of consecutive starts that end within `_STABLE_S` after which the engine counts as broken."""
_STABLE_S = 60.0
_READY_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 600.0
"""Maximum time until the engine listens. It imports its modules, possibly from a slow disk, but loads no models yet."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_TRAIN_THREADS = 2
"""Default number of training threads. No other part of the service is busy during training, while sampling takes turns
with tools and judges."""
_GPU_SLOTS = 256
"""Default number of conversations that a GPU decodes together: all rollouts of an iteration and of an evaluation, by
default, of base models whose size is known (training/bases/defaults.py)."""
_STOP_TIMEOUT_S = 10.0
"""Time to finish writing a checkpoint."""
_KEPT_LINES = 20
_LINE_LIMIT = 1 << 20
_VARIABLES = (
    "ATEN_", "CUBLAS_", "CUDA", "GLOO_", "GOMP_", "KMP_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTHON",
    "PYTORCH_", "RAY_", "TORCH", "TRITON_", "VLLM_",
)  # fmt: skip
"""How variables begin that the engine and its libraries read."""
_OF_STORE = ("AWS_", "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "https_proxy", "no_proxy")
"""The variables that a checkpoint store needs, which can be behind a proxy."""

log = structlog.get_logger(__name__)
engine_log = structlog.get_logger("engine")


class EngineUnavailable(Unavailable):
    """The engine is not running and does not start. The message contains its last log lines."""


class EngineState(StrEnum):
    """State of the engine as reported by `/health/ready`."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"
    SHARED = "shared"
    """Someone else runs the engine."""
    UNRESPONSIVE = "unresponsive"
    """The engine (ours or a shared one) runs but does not answer."""


_WHY_ABSENT = {
    EngineState.FAILED: "failed to start",
    EngineState.STOPPED: "has been stopped",
    EngineState.SHARED: "is run by someone else",
}


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The engine's URL and key."""

    url: str
    """URL without a path: `http://127.0.0.1:PORT`."""
    key: str = field(repr=False)


class EngineHandle(Protocol):
    """The engine that this process uses."""

    @property
    def state(self) -> EngineState: ...

    @property
    def trouble(self) -> Trouble | None:
        """None if the engine answers or has not been started."""

    @property
    def health(self) -> Mapping[str, Any]:
        """Its latest reply to a health check; empty if there is none yet."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def address(self) -> EngineAddress:
        """Return its address. Raises EngineUnavailable."""

    async def unresponsive(self) -> None:
        """Wait until it no longer answers."""


def open_engine(settings: Settings) -> EngineHandle:
    """Return the shared engine if the settings name one, otherwise an engine of this process, not started yet."""
    if settings.engine_url is None:
        return EngineProcess(settings)
    key = settings.engine_key.get_secret_value() if settings.engine_key else "none"
    return SharedEngine(EngineAddress(str(settings.engine_url).rstrip("/"), key))


@contextlib.asynccontextmanager
async def held_engine(settings: Settings, *, start: bool = True) -> AsyncIterator[EngineHandle]:
    """Lock the data directory and start its engine in the background. Both are released at the end.

    Raises DataDirectoryError.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(DataDirectory(settings.data_dir).release)
        engine = open_engine(settings)
        stack.push_async_callback(engine.stop)
        if start:
            await engine.start()
        yield engine


class SharedEngine:
    """An engine that someone else runs. From `start` to `stop`, we only check whether it answers."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        self.health: Mapping[str, Any] = {}
        self._pulse = _pulse_of(address.url, self._note)
        self._watch: asyncio.Task[None] | None = None
        self._fell_silent = asyncio.Event()

    @property
    def state(self) -> EngineState:
        return EngineState.SHARED if self.trouble is None else EngineState.UNRESPONSIVE

    @property
    def trouble(self) -> Trouble | None:
        return self._pulse.trouble

    async def start(self) -> None:
        self._watch = asyncio.create_task(self._keep_watch(), name="engine-watch")

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})

    async def address(self) -> EngineAddress:
        if self.trouble is not None:
            raise EngineUnavailable(f"The engine at {self._address.url} does not answer: {self.trouble.reason}.")
        return self._address

    async def unresponsive(self) -> None:
        await self._fell_silent.wait()

    def _note(self, health: Mapping[str, Any]) -> None:
        self.health = health

    async def _keep_watch(self) -> None:
        async for trouble in self._pulse.beats():
            if trouble is None:
                self._fell_silent.clear()
            elif not self._fell_silent.is_set():
                log.warning("the shared engine does not answer", url=self._address.url, reason=trouble.reason)
                self._fell_silent.set()


def _pulse_of(url: str, note: Callable[[Mapping[str, Any]], None]) -> Pulse:
    """Return the pulse of the engine at `url`. `note` is called with its replies."""

    async def ask() -> None:
        import httpx  # imported late, so that the engine's process starts before any slow import

        # Each check opens a new connection, because one that stays open says little.
        settings = {**route(url), "proxy": None}
        async with httpx.AsyncClient(timeout=None, **settings) as http:
            try:
                reply = await http.get(f"{url}/health")
            except httpx.TransportError as error:
                raise ConnectionError(f"no answer: {type(error).__name__}") from error
        with contextlib.suppress(ValueError):  # any reply shows that it is alive
            note(dict(reply.json()))

    return Pulse(ask)


class EngineProcess:
    """The engine of one data directory. `start` returns immediately; `address` waits until it listens."""

    def __init__(self, settings: Settings, command: tuple[str, ...] | None = None, *, watched: bool = True) -> None:
        """`watched`: whether to poll `GET /health`. The event loop must then always have time for it, so that an engine
        that does not answer is frozen."""
        self._watched = watched
        self._restart_after_s = settings.restart_after_s
        self._directory = settings.data_dir / "engine"
        self._ready_file = self._directory / "ready.json"
        self._pid_file = self._directory / "process.json"
        self._key = secrets.token_urlsafe(32)
        self._variables = _VARIABLES if settings.engine_checkpoint_store is None else (*_VARIABLES, *_OF_STORE)
        self._command = (
            *(command or (sys.executable, "-m", "learnloop_service.training.engine")),
            *self._options(settings),
        )
        self._port = 0
        self.health: Mapping[str, Any] = {}
        self._state = EngineState.STOPPED
        self._down: tuple[float, str] | None = None
        """Since when (by the monotonic clock) and why the engine has not been working."""
        self._changed = asyncio.Condition()
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._supervisor: asyncio.Task[None] | None = None

    def _options(self, settings: Settings) -> tuple[str, ...]:
        options = {
            "--data-dir": settings.data_dir,
            "--host": "127.0.0.1",
            "--train-threads": min(_TRAIN_THREADS, usable_cores()),
            "--ready-file": self._ready_file,
            "--api-key-env": KEY_VARIABLE,
        }
        flags = [text for name, value in options.items() for text in (name, str(value))]
        if settings.engine_checkpoint_store is not None:
            flags += ["--checkpoint-store", settings.engine_checkpoint_store]
        if settings.engine_cache_mb is not None:
            flags += ["--cache-mb", str(settings.engine_cache_mb)]
        if settings.engine_device == "cuda":
            flags += ["--slots", str(_GPU_SLOTS)]
        for name, directory in settings.engine_base_models.items():
            flags += ["--base-model", f"{name}={directory}"]
        return (*flags, "--die-with-parent", *settings.engine_args)

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def trouble(self) -> Trouble | None:
        return None if self._down is None else Trouble(time.monotonic() - self._down[0], self._down[1])

    async def start(self) -> None:
        """Start the engine in the background, after ending one that an earlier service left behind."""
        self._directory.mkdir(parents=True, exist_ok=True)
        if await asyncio.to_thread(child_process.end_leftover, self._pid_file):
            log.warning("ended the engine that an earlier service left")
        self._begin()

    def _begin(self) -> None:
        self._state = EngineState.STARTING
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")

    async def stop(self) -> None:
        """Stop the engine after it has finished writing a checkpoint."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        await self._enter(EngineState.STOPPED)

    async def address(self, timeout_s: float = _READY_TIMEOUT_S) -> EngineAddress:
        """Wait until the engine listens and return its address. Raises EngineUnavailable."""
        if self._state is EngineState.FAILED:
            self._begin()
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._state is not EngineState.STARTING)
        except TimeoutError:
            raise EngineUnavailable(f"The engine did not start within {timeout_s:.0f} s. {self._last_log()}") from None
        if self._state is EngineState.UNRESPONSIVE:
            raise EngineUnavailable(f"The engine does not answer. {self._last_log()}")
        if self._state is not EngineState.READY:
            raise EngineUnavailable(f"The engine {_WHY_ABSENT[self._state]}. {self._last_log()}")
        return EngineAddress(f"http://127.0.0.1:{self._port}", self._key)

    async def unresponsive(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._state is EngineState.UNRESPONSIVE)

    def _last_log(self) -> str:
        return "Last log lines: " + (" | ".join(list(self._last_lines)[-5:]) or "(none)")

    async def _enter(self, state: EngineState) -> None:
        async with self._changed:
            self._state = state
            self._changed.notify_all()

    async def _enter_ready(self) -> None:
        self._down = None
        await self._enter(EngineState.READY)

    async def _supervise(self) -> None:
        quick_deaths = 0
        while quick_deaths < _QUICK_DEATHS:
            started = time.monotonic()
            try:
                status = await self._run_once()
            except OSError as error:  # can be temporary: the disk is full or read-only, or no process can be created
                log.error("engine not started", error=str(error))
                status = -1
            self._note_down(f"it ended with the status {status} and is started again")
            lived_s = time.monotonic() - started
            quick_deaths = 0 if lived_s > _STABLE_S else quick_deaths + 1
            log.error("engine died", exit_status=status, lived_s=round(lived_s, 1), said=self._last_log())
            await self._enter(EngineState.STARTING)
            if 0 < quick_deaths < _QUICK_DEATHS:
                await asyncio.sleep(min(_FIRST_PAUSE_S * 2 ** (quick_deaths - 1), _LONGEST_PAUSE_S))
        log.error("engine given up", deaths=quick_deaths)
        self._note_down("it fails to start; its log says why")
        await self._enter(EngineState.FAILED)

    def _note(self, health: Mapping[str, Any]) -> None:
        self.health = health

    def _note_down(self, reason: str) -> None:
        """Set the reason why the engine is not working. The start of the outage is kept."""
        self._down = (time.monotonic() if self._down is None else self._down[0], reason)

    async def _run_once(self) -> int:
        """Start the engine, announce when it listens, and return its exit status. Cancellation stops it."""
        self._ready_file.unlink(missing_ok=True)
        self._last_lines.clear()
        self.health = {}
        env = {**child_process.inherited(*self._variables), KEY_VARIABLE: self._key}
        argv = (*self._command, "--port", str(self._port))
        log.info("engine starts")
        process = await child_process.spawn(argv, stderr=asyncio.subprocess.PIPE, env=env)
        child_process.remember(self._pid_file, process.pid)
        forward = asyncio.create_task(self._forward(process))
        attend = asyncio.create_task(self._monitor(process))
        try:
            status = await process.wait()
        finally:
            attend.cancel()
            if process.returncode is None:
                # An unresponsive engine will not stop in an orderly way.
                timeout_s = 0 if self._state is EngineState.UNRESPONSIVE else _STOP_TIMEOUT_S
                await child_process.stop(process, signal.SIGTERM, timeout_s)
            await asyncio.wait({forward, attend}, timeout=1)
            forward.cancel()
            self._pid_file.unlink(missing_ok=True)
        return status

    async def _monitor(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S if self._restart_after_s > 0 else None):
                await self._wait_ready(process)
        except TimeoutError:
            log.error("engine ended: it did not begin to listen", pid=process.pid, seconds=_START_TIMEOUT_S)
            return child_process.kill_group(process)
        if self._watched:
            await self._watch(process)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Poll the engine's health and kill it after too long without a reply. The supervisor then restarts it."""
        async for trouble in _pulse_of(f"http://127.0.0.1:{self._port}", self._note).beats():
            if trouble is None:
                if self._state is EngineState.UNRESPONSIVE:
                    log.info("engine answers again")
                    await self._enter_ready()
                continue
            if self._state is EngineState.READY:
                log.warning("engine does not answer", pid=process.pid, reason=trouble.reason)
                self._note_down("it does not answer")
                await self._enter(EngineState.UNRESPONSIVE)
            if 0 < self._restart_after_s <= trouble.seconds:
                log.error("engine ended: it did not answer", pid=process.pid, seconds=round(trouble.seconds, 1))
                return child_process.kill_group(process)

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the ready file of this process, then announce that the engine listens."""
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                ready = json.loads(self._ready_file.read_text())
                if ready["pid"] == process.pid:
                    break
            await asyncio.sleep(0.05)
        self._port = ready["port"]
        await self._enter_ready()
        log.info("engine is up", port=self._port, pid=process.pid)

    async def _forward(self, process: asyncio.subprocess.Process) -> None:
        """Copy the engine's log lines to our log."""
        assert process.stderr is not None
        buffer = b""
        while chunk := await process.stderr.read(65_536):
            *lines, buffer = (buffer + chunk).split(b"\n")
            buffer = buffer[-_LINE_LIMIT:]
            for line in lines:
                self._log_line(line.decode(errors="replace").rstrip())
        if buffer:
            self._log_line(buffer.decode(errors="replace"))

    def _log_line(self, line: str) -> None:
        try:
            fields = json.loads(line)
            level, event = str(fields.pop("level", "info")).lower(), str(fields.pop("event"))
        except (ValueError, KeyError, AttributeError):
            fields, level, event = {}, "info", line
        if event:
            self._last_lines.append(event)
            fields = {name: value for name, value in fields.items() if name not in {"timestamp", "logger"}}
            getattr(engine_log, level if level in {"debug", "info", "warning", "error"} else "info")(event, **fields)
