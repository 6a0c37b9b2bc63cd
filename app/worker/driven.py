"""Shared by work on its own event loop: queries on the service's event loop, and patience with an unavailable
backend."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.aio.retry import LONG_S, Result, retry_while_database_is_down
from learnloop_service.app.processes.engine import EngineUnavailable
from learnloop_service.training.backends.base import BackendUnavailable

_RETRY_DELAYS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Delays before retries of an unavailable backend. Once they are used up without progress, the work ends."""

log = structlog.get_logger(__name__)


async def query(
    main_loop: asyncio.AbstractEventLoop, act: Callable[[], Awaitable[Result]], at_most_s: float = LONG_S
) -> Result:
    """Use the database on the service's event loop (`main_loop`); see `retry_while_database_is_down`."""
    return await run_on_loop(main_loop, retry_while_database_is_down(act, at_most_s))


class Patience:
    """Retries work whose backend is unavailable, after growing delays. Any progress resets the delays."""

    def __init__(self, waits: Callable[[str], None]) -> None:
        """`waits` is called with what the work waits for."""
        self._waits = waits
        self.progressed()

    def progressed(self) -> None:
        """Begin with the shortest delay again."""
        self._delays_s = iter(_RETRY_DELAYS_S)

    async def retrying(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of the work. Raises EngineUnavailable or BackendUnavailable after the last delay."""
        while True:
            try:
                return await work()
            except (EngineUnavailable, BackendUnavailable) as error:
                if (delay_s := next(self._delays_s, None)) is None:
                    raise
                log.warning("backend away, waiting", error=str(error), pause_s=delay_s)
                self._waits(str(error))
                await asyncio.sleep(delay_s)
