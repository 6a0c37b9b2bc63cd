"""Limits how many rollouts of a run are in flight, and decides which go first."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class RolloutGate:
    """Limits how many rollouts of a run are in flight. Waiting rollouts of the earliest iteration go first, so that no
    iteration waits for one that runs ahead of it."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    @asynccontextmanager
    async def turn(self, iteration: int) -> AsyncIterator[None]:
        """Hold a slot for a rollout of `iteration` while the block runs."""
        await self._enter(iteration)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, iteration: int) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (iteration, next(self._number), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the slot was already ours
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
