"""Many who ask at the same time share one read of the database.

What comes while a read is under way waits for the next one. So whoever asks sees everything that was committed before
it asked, as with a read of its own, and the more ask, the less each of them costs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, cast

Found = TypeVar("Found")

_READERS = 2
"""Reads under way at once, so that a slow one does not hold up all."""
_KEYS_AT_ONCE = 50


class CoalescedReads(Generic[Found]):
    """Reads by key, for tasks of one event loop. `close` after."""

    def __init__(self, read: Callable[[Sequence[str]], Awaitable[Mapping[str, Found]]]) -> None:
        """`read` gives what it finds of up to 50 keys."""
        self._read = read
        self._asked: dict[str, asyncio.Future[Found | None]] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def get(self, key: str) -> Found | None:
        """What there is for the key; None: nothing. Raises what `read` raises."""
        answer = self._asked.get(key)
        if answer is None:
            answer = self._asked[key] = asyncio.get_running_loop().create_future()
            if len(self._readers) < _READERS:
                reader = asyncio.create_task(self._read_on(), name="shared-reads")
                self._readers.add(reader)
        return await asyncio.shield(answer)  # it is not ours alone: our being cancelled is nobody else's matter

    async def close(self) -> None:
        """End all reads; whoever still waits is cancelled."""
        readers = set(self._readers)
        for reader in readers:
            reader.cancel()
        if readers:
            await asyncio.wait(readers)
        for answer in self._asked.values():
            answer.cancel()

    async def _read_on(self) -> None:
        """Read until nobody asks."""
        try:
            while self._asked:
                taken = dict(islice(self._asked.items(), _KEYS_AT_ONCE))
                for key in taken:
                    del self._asked[key]
                await self._answer(taken)
        finally:  # at once, not by a callback: who asks next must know that nobody reads
            self._readers.remove(cast(Any, asyncio.current_task()))

    async def _answer(self, taken: Mapping[str, asyncio.Future[Found | None]]) -> None:
        try:
            found = await self._read(list(taken))
        except Exception as error:
            for answer in taken.values():
                answer.set_exception(error)
                answer.exception()  # seen, also where nobody waits any more
        else:
            for key, answer in taken.items():
                answer.set_result(found.get(key))
        finally:
            for answer in taken.values():
                answer.cancel()
