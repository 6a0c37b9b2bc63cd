"""Whether something answers: it is asked again and again in the background, each time with a small deadline.

So whoever wants to know need not wait, and what does not answer holds up nobody.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

PERIOD_S = 2.0
DEADLINE_S = 5.0
"""For one answer: long enough for a process that is only busy."""
_HELD_UP = 1.5
"""Times the deadline: a question that took longer was not ended in time."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that does not do its work: for how many seconds, and what is wrong."""

    seconds: float
    reason: str


class Pulse:
    """Of one thing. All on one event loop."""

    def __init__(
        self, ask: Callable[[], Awaitable[None]], *, period_s: float = PERIOD_S, deadline_s: float = DEADLINE_S
    ) -> None:
        """`ask` raises if there is no answer; what it raises must be fit for everybody to read."""
        self._ask = ask
        self._period_s = period_s
        self._deadline_s = deadline_s
        self._failing: tuple[float, str] | None = None

    @property
    def trouble(self) -> Trouble | None:
        """None if it answered when it was last asked. The time counts from the end of the first question without an
        answer."""
        if self._failing is None:
            return None
        since, reason = self._failing
        return Trouble(time.monotonic() - since, reason)

    async def beats(self) -> AsyncGenerator[Trouble | None, None]:
        """Ask for ever, and yield `trouble` after each question."""
        while True:
            await asyncio.sleep(self._period_s)
            asked = time.monotonic()
            reason = await self._fault()
            now = time.monotonic()
            # Where we were held up ourselves, the answer may have come and not been seen: that says nothing.
            if reason is None or now - asked < _HELD_UP * self._deadline_s:
                since = now if self._failing is None else self._failing[0]
                self._failing = None if reason is None else (since, reason)
            yield self.trouble

    @asynccontextmanager
    async def beating(self, name: str) -> AsyncIterator[None]:
        """Ask in the background while this is open."""
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
        """Ask once; why there was no answer."""
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._ask()
        except TimeoutError:
            return f"no answer within {self._deadline_s:g} s"
        except Exception as error:
            return str(error)
        return None
