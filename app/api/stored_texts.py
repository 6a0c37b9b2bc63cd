"""Texts of stored sets for replies, of which the service holds one, however many clients read slowly."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from learnloop_service.app.api.heavy_reads import HeavyReads
from learnloop_service.app.datasets.documents import Kind, stored_text, version_of
from learnloop_service.app.db.database import Database

_PART_CHARACTERS = 262_144
_HOLD_S = 5.0


class _Set(NamedTuple):
    project: str | None
    kind: Kind
    hash: str
    version: str


class StoredTexts:
    """Reads stored sets anew for readers that fell behind, on their project's turn."""

    def __init__(self, reads: HeavyReads) -> None:
        self._reads = reads
        self._latest: tuple[_Set, str] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def parts(self, database: Database, project: str | None, kind: Kind, hash: str) -> AsyncIterator[str]:
        """Return the parts of a set's JSON text. The project (None: any) must be able to use it. Raises
        UnknownDocument, before the first part."""
        return self._parts(_Set(project, kind, hash, await version_of(database, project, kind, hash)))

    async def _parts(self, key: _Set) -> AsyncIterator[str]:
        start = 0
        while part := (await self._text(key))[start : start + _PART_CHARACTERS]:
            yield part
            start += len(part)

    async def _text(self, key: _Set) -> str:
        """Return the latest text if it is this set's; otherwise read the set's text and hold it instead. Raises
        UnknownDocument if the set has changed since the first part, which ends the reply."""
        if (latest := self._latest) is None or latest[0] != key:
            owner = key.project or "*"
            latest = self._latest = (
                key,
                await self._reads.next_piece(owner, lambda database: self._read(database, key)),
            )
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_HOLD_S, self._drop)
        return latest[1]

    async def _read(self, database: Database, key: _Set) -> str:
        """Return the set's text, which another reader can have read while this one waited."""
        latest = self._latest
        return latest[1] if latest is not None and latest[0] == key else await stored_text(database, *key)

    def _drop(self) -> None:
        self._latest = None
