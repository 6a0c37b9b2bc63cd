"""Turn-taking over a resource that can be in one state at a time."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

S = TypeVar("S")


class Turns(Generic[S]):
    """Tasks that need the same state run concurrently. Others wait until these have left; from then on, newcomers that
    need the old state queue up too, so that no task starves. To be used from one event loop."""

    def __init__(self) -> None:
        self._state: S | None = None
        self._inside = 0
        self._waiting: deque[tuple[S, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, state: S) -> AsyncIterator[None]:
        """While the context is open, all other tasks inside need this state too."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((state, turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._inside -= 1
            else:
                turn.cancel()
            self._admit()

    def _admit(self) -> None:
        """Admit the first waiting task if it can enter, together with all that wait for the same state."""
        self._waiting = deque(entry for entry in self._waiting if not entry[1].cancelled())
        if not self._waiting or (self._inside and self._waiting[0][0] != self._state):
            return
        self._state = self._waiting[0][0]
        entering = [turn for state, turn in self._waiting if state == self._state]
        self._waiting = deque(entry for entry in self._waiting if entry[0] != self._state)
        self._inside += len(entering)
        for turn in entering:
            turn.set_result(None)
