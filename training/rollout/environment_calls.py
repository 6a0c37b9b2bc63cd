"""Calls of environments that can block: synchronous methods run on threads, and asynchronous ones are watched.

Environments of this service do not block, and are called directly.
"""

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import structlog

from learnloop_service.environment import contract
from learnloop_service.environment.base import EpisodeFailed

T = TypeVar("T")

MOST_THREADS = 64
"""Most threads that calls of environments occupy, including those of cancelled calls that have not returned."""
MOST_HELD_S = 2.0
"""Longest time for which an asynchronous call can hold the event loop."""
_LOOK_S = 0.5

log = structlog.get_logger(__name__)


class EnvironmentBlocked(EpisodeFailed):
    """A call of the environment held the event loop, and with it everything else."""


@dataclass(eq=False, slots=True)
class _Call:
    """A running call: on its thread, or a step of it on the event loop's."""

    name: str
    thread: int | None = None
    began: float = field(default_factory=time.monotonic)
    blocked_at: str | None = None
    """The line at which it held the event loop."""

    def where(self) -> str:
        """Return which line of the environment the call is at."""
        frame = None if self.thread is None else sys._current_frames().get(self.thread)
        return f"{self.name}() of the environment at {_line_of(frame)}"


class _Loop:
    """The calls and time limits of one event loop."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(MOST_THREADS)
        self.threads: set[_Call] = set()
        self.limits: set[asyncio.Timeout] = set()


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()
_steps: dict[int, _Call] = {}
"""The step that each event loop is at, by the loop's thread."""
_watcher_lock = threading.Lock()
_watcher: threading.Thread | None = None


async def off_loop(owner: object, method: Callable[..., T], *arguments: Any) -> T:
    """Return what a synchronous method of an environment or episode returns. It runs on a thread, unless the owner is
    of this service.

    The thread of a cancelled call continues, and counts among MOST_THREADS until it returns. The CancelledError has a
    note on which line did not return.
    """
    if contract.is_ours(owner):
        return method(*arguments)
    loop, here = asyncio.get_running_loop(), _here()
    call = _Call(getattr(method, "__name__", str(method)))
    try:
        await here.free.acquire()
    except asyncio.CancelledError as error:
        oldest = min(here.threads, key=lambda running: running.began)
        error.add_note(f"all {MOST_THREADS} threads for environments are occupied, the longest by {oldest.where()}")
        raise
    returned: asyncio.Future[T] = loop.create_future()
    work = contextvars.copy_context().run, (_run, call, here, loop, returned, method, arguments)
    try:
        threading.Thread(target=work[0], args=work[1], name="environment", daemon=True).start()
    except RuntimeError:  # the system has no thread left
        here.free.release()
        raise
    here.threads.add(call)
    try:
        return await returned
    except asyncio.CancelledError as error:
        description = f"{call.where()} has not returned ({len(here.threads)} of {MOST_THREADS} threads are occupied)"
        log.warning("a call of an environment does not return", call=description)
        error.add_note(description)
        raise


def _run(
    call: _Call, here: _Loop, loop: asyncio.AbstractEventLoop, returned: asyncio.Future[T], method: Callable[..., T],
    arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    call.thread = threading.get_ident()
    result: T | None = None
    failure: BaseException | None = None
    try:
        result = method(*arguments)
    except BaseException as error:  # a future takes no StopIteration
        failure = RuntimeError(f"StopIteration: {error}") if isinstance(error, StopIteration) else error

    def end() -> None:
        here.threads.discard(call)
        here.free.release()
        if returned.cancelled():
            return
        if failure is None:
            returned.set_result(result)  # type: ignore[arg-type]
        else:
            returned.set_exception(failure)

    with suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(end)


async def watched(owner: object, method: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Return what an asynchronous method of an episode returns. Raises EnvironmentBlocked if it holds the event loop
    for more than MOST_HELD_S; the limits of others are postponed by that time."""
    work = method(*arguments)
    return await (work if contract.is_ours(owner) else _Watched(work, getattr(method, "__name__", str(method))))


class _Watched(Generic[T]):
    """Awaits an awaitable and times each step of it on the event loop."""

    def __init__(self, work: Awaitable[T], name: str) -> None:
        self._work = work
        self._name = name

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Any = self._work.__await__()
        step, argument = steps.send, None
        while True:
            try:
                with _timed(self._name):
                    waits_for = step(argument)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except EnvironmentBlocked:
                steps.close()
                raise
            try:
                step, argument = steps.send, (yield waits_for)
            except BaseException as error:
                step, argument = steps.throw, error


@contextmanager
def _timed(name: str) -> Iterator[None]:
    """Time a step. Raises EnvironmentBlocked."""
    _start_watcher()
    here, thread = _here(), threading.get_ident()
    call = _steps[thread] = _Call(name, thread)
    try:
        yield
    finally:
        del _steps[thread]
        duration_s = time.monotonic() - call.began
        if duration_s > MOST_HELD_S:
            for limit in here.limits:
                if (when := limit.when()) is not None and not limit.expired():
                    limit.reschedule(when + duration_s)
            where = call.blocked_at or f"{name}() of the environment"
            raise EnvironmentBlocked(
                f"{where} held the event loop for {duration_s:.1f} s, and with it every other rollout; await an "
                "asynchronous client, or asyncio.to_thread"
            )


@asynccontextmanager
async def lasting_timeout(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """Limit the time, without the time for which an environment holds the event loop. Raises TimeoutError."""
    limits = _here().limits
    async with asyncio.timeout(seconds) as limit:
        limits.add(limit)
        try:
            yield limit
        finally:
            limits.discard(limit)


def _here() -> _Loop:
    return _loops.setdefault(asyncio.get_running_loop(), _Loop())


def _start_watcher() -> None:
    global _watcher
    with _watcher_lock:
        if _watcher is None or not _watcher.is_alive():  # a forked process has none
            _watcher = threading.Thread(target=_watch, name="environment-watch", daemon=True)
            _watcher.start()


def _watch() -> None:
    while True:
        time.sleep(_LOOK_S)
        for call in list(_steps.values()):
            if call.blocked_at is None and time.monotonic() - call.began > MOST_HELD_S / 2:
                call.blocked_at = call.where()
                log.warning("an environment holds the event loop", call=call.blocked_at)


def _line_of(frame: FrameType | None) -> str:
    """Return the line that the environment's own method is at, as `FILE:LINE`."""
    outermost = None
    while frame is not None and frame.f_code.co_filename != __file__:
        if frame.f_code.co_filename != contract.__file__:
            outermost = frame
        frame = frame.f_back
    return "an unknown line" if outermost is None else f"{outermost.f_code.co_filename}:{outermost.f_lineno}"
