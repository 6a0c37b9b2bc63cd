"""Background health checks: asks repeatedly whether something responds, with a short deadline each time.

Callers read the latest result without waiting, so an unresponsive service does not hold them up.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

PERIOD_S = 2.0
DEADLINE_S = 5.0
"""Deadline of one check: long enough for a process that is merely busy."""
_LATE_FACTOR = 1.5
"""Multiple of the deadline. A check that took longer was held up by our own event loop, since its timeout came late."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An unresponsive service: for how many seconds, and the reason."""

    seconds: float
    reason: str


class Pulse:
    """Health checks of one service, all on one event loop."""

    def __init__(
        self, ask: Callable[[], Awaitable[None]], *, period_s: float = PERIOD_S, deadline_s: float = DEADLINE_S
    ) -> None:
        """`ask` raises if the service does not respond. The error's message must be safe to show to clients."""
        self._ask = ask
        self._period_s = period_s
        self._deadline_s = deadline_s
        self._failing: tuple[float, str] | None = None

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong and since when, counted from the end of the first failed check; None if the latest check
        succeeded."""
        if self._failing is None:
            return None
        since, reason = self._failing
        return Trouble(time.monotonic() - since, reason)

    async def beats(self) -> AsyncGenerator[Trouble | None, None]:
        """Check forever, and yield `trouble` after each check."""
        while True:
            await asyncio.sleep(self._period_s)
            started_at = time.monotonic()
            reason = await self._fault()
            now = time.monotonic()
            # If our own loop was held up, a reply may have arrived unnoticed, so a failure proves nothing.
            if reason is None or now - started_at < _LATE_FACTOR * self._deadline_s:
                since = now if self._failing is None else self._failing[0]
                self._failing = None if reason is None else (since, reason)
            yield self.trouble

    @asynccontextmanager
    async def beating(self, name: str) -> AsyncIterator[None]:
        """Check in the background while the context is open."""
        task = asyncio.create_task(self._beat(), name=name)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _beat(self) -> None:
        async for _ in self.beats():
            pass

    async def _fault(self) -> str | None:
        """Check once, and return why there was no answer, or None."""
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._ask()
        except TimeoutError:
            return f"no answer within {self._deadline_s:g} s"
        except Exception as error:
            return str(error)
        return None
