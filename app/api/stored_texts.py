"""Texts of stored sets for replies, of which the service holds one, however many clients read slowly."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from learnloop_service.app.api.heavy_reads import HeavyReads
from learnloop_service.app.db.database import Database
from learnloop_service.app.runs.documents import Kind, stored_text, version_of

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
        self._held: tuple[_Set, str] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def parts(self, database: Database, project: str | None, kind: Kind, hash: str) -> AsyncIterator[str]:
        """Return the parts of a set's JSON text. The project (None: any) must be able to use it. Raises
        UnknownDocument, before the first part."""
        return self._parts(_Set(project, kind, hash, await version_of(database, project, kind, hash)))

    async def _parts(self, wanted: _Set) -> AsyncIterator[str]:
        start = 0
        while part := (await self._text(wanted))[start : start + _PART_CHARACTERS]:
            yield part
            start += len(part)

    async def _text(self, wanted: _Set) -> str:
        """Return the text that is held if it is this one; otherwise read it, and hold it instead. Raises
        UnknownDocument if the set has changed since the first part, which ends the reply."""
        if (held := self._held) is None or held[0] != wanted:
            owner = wanted.project or "*"
            held = self._held = (wanted, await self._reads.next_piece(owner, lambda each: self._read(each, wanted)))
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_HOLD_S, self._drop)
        return held[1]

    async def _read(self, database: Database, wanted: _Set) -> str:
        """Return the text. A reader that waited for the one before can find it held now."""
        held = self._held
        return held[1] if held is not None and held[0] == wanted else await stored_text(database, *wanted)

    def _drop(self) -> None:
        self._held = None
