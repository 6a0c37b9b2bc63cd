"""Retries transactions while the database is unavailable, so that an outage does not make work fail."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from learnloop_service.app.errors import DATABASE_DOWN

Result = TypeVar("Result")
LONG_S = 3600.0


async def retry_while_database_is_down(act: Callable[[], Awaitable[Result]], at_most_s: float = LONG_S) -> Result:
    """Return the result of `act`, retried while the database is down. Raises DATABASE_DOWN after `at_most_s` seconds.

    `act` must be one transaction that is safe to repeat: it may have been committed although the reply was lost.
    """
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(DATABASE_DOWN),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        stop=stop_after_delay(at_most_s),
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            return await act()
    raise AssertionError("reraise=True leaves no other way out")
