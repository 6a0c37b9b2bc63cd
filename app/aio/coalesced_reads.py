"""Concurrent readers share one read of the database.

Readers that arrive during a read wait for the next one. Every reader therefore sees everything that was committed
before it asked, as with its own read, and the cost per reader falls with their number.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, cast

Found = TypeVar("Found")

_READERS = 2
"""Number of concurrent reads, so that a slow one does not block all readers."""
_KEYS_AT_ONCE = 50


class CoalescedReads(Generic[Found]):
    """Reads by key, for tasks of one event loop. Call `close` at the end."""

    def __init__(self, read: Callable[[Sequence[str]], Awaitable[Mapping[str, Found]]]) -> None:
        """`read` returns what it finds for up to 50 keys."""
        self._read = read
        self._asked: dict[str, asyncio.Future[Found | None]] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def get(self, key: str) -> Found | None:
        """Return the value of the key, or None if there is none. Raises what `read` raises."""
        answer = self._asked.get(key)
        if answer is None:
            answer = self._asked[key] = asyncio.get_running_loop().create_future()
            if len(self._readers) < _READERS:
                reader = asyncio.create_task(self._read_on(), name="shared-reads")
                self._readers.add(reader)
        return await asyncio.shield(answer)  # shared with other readers, so our cancellation must not cancel it

    async def close(self) -> None:
        """End all reads and cancel readers that are still waiting."""
        readers = set(self._readers)
        for reader in readers:
            reader.cancel()
        if readers:
            await asyncio.wait(readers)
        for answer in self._asked.values():
            answer.cancel()

    async def _read_on(self) -> None:
        """Read until no keys are waiting."""
        try:
            while self._asked:
                batch = dict(islice(self._asked.items(), _KEYS_AT_ONCE))
                for key in batch:
                    del self._asked[key]
                await self._answer(batch)
        finally:  # here and not in a callback: the next caller must see that no reader is left
            self._readers.remove(cast(Any, asyncio.current_task()))

    async def _answer(self, batch: Mapping[str, asyncio.Future[Found | None]]) -> None:
        try:
            values = await self._read(list(batch))
        except Exception as error:
            for answer in batch.values():
                answer.set_exception(error)
                answer.exception()  # marks the error as retrieved, in case no reader is waiting any more
        else:
            for key, answer in batch.items():
                answer.set_result(values.get(key))
        finally:
            for answer in batch.values():
                answer.cancel()
