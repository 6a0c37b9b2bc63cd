"""Work that is repeated periodically while a context is open."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.environment.first_line import first_line

log = structlog.get_logger(__name__)


@asynccontextmanager
async def every(period_s: float, work: Callable[[], Awaitable[None]], name: str) -> AsyncIterator[None]:
    """Run `work` every `period_s` seconds, first after one period. While the database is down, each period retries."""
    task = asyncio.create_task(_repeat(period_s, work, name), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _repeat(period_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
    repeated = RepeatedLog(log)
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
        except DATABASE_DOWN as error:
            repeated.warning("periodic work failed", work=name, error=first_line(error))
        except Exception as error:  # the next period may succeed, and nothing else would report the error
            repeated.error("periodic work failed", work=name, exc_info=error)
