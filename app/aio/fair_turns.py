"""Limits concurrent work, and takes waiting owners in turn."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from learnloop_service.app.errors import TooManyRequests

_RETRY_AFTER_S = 5


class FairTurns:
    """Fair turns for tasks of one event loop. A new owner waits for at most one turn of every other owner."""

    def __init__(self, at_once: int, waiting_per_owner: int) -> None:
        self._free = at_once
        self._waiting_per_owner = waiting_per_owner
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting tasks by owner; the first owner is next."""

    @asynccontextmanager
    async def turn(self, owner: str, waiting: int | None = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it during the context. Raises TooManyRequests if the owner has too many waiting:
        `waiting`, or `waiting_per_owner`."""
        await self._take(owner, waiting or self._waiting_per_owner)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, owner: str, most: int) -> None:
        if self._free:
            self._free -= 1
            return
        queue = self._waiting.setdefault(owner, deque())
        if len(queue) >= most:
            raise TooManyRequests(
                f"{len(queue)} expensive requests of this project are waiting already.", retry_after_s=_RETRY_AFTER_S
            )
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn was granted at the moment of the cancellation
                self._pass_on()
            elif turn in queue:  # a cancelled task must not count as waiting
                queue.remove(turn)
                if not queue:
                    del self._waiting[owner]
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            owner = next(iter(self._waiting))
            queue = self._waiting.pop(owner)
            turn = queue.popleft()
            if queue:
                self._waiting[owner] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
