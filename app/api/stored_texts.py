"""Texts of stored sets for replies, of which the service holds one, however many clients read slowly."""

import asyncio
from collections.abc import AsyncIterator

from app.api.heavy_reads import HeavyReads
from app.db.database import Database
from app.runs.documents import Kind, is_stored, stored_text

_PART_CHARACTERS = 262_144
_HOLD_S = 5.0


class StoredTexts:
    """Reads stored sets anew for readers that fell behind, on their project's turn."""

    def __init__(self, reads: HeavyReads) -> None:
        self._reads = reads
        self._held: tuple[tuple[Kind, str], str] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def parts(self, database: Database, project: str | None, kind: Kind, hash: str) -> AsyncIterator[str]:
        """Return the parts of a set's JSON text. The project (None: any) must be able to use it. Raises
        UnknownDocument, before the first part."""
        await is_stored(database, project, kind, hash)
        return self._parts(project or "*", kind, hash)

    async def _parts(self, owner: str, kind: Kind, hash: str) -> AsyncIterator[str]:
        start = 0
        while part := (await self._text(owner, kind, hash))[start : start + _PART_CHARACTERS]:
            yield part
            start += len(part)

    async def _text(self, owner: str, kind: Kind, hash: str) -> str:
        """Return the text that is held if it is this one; otherwise read it, and hold it instead."""
        if (held := self._held) is None or held[0] != (kind, hash):
            text = await self._reads.next_piece(owner, lambda database: self._read(database, kind, hash))
            held = self._held = ((kind, hash), text)
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_HOLD_S, self._drop)
        return held[1]

    async def _read(self, database: Database, kind: Kind, hash: str) -> str:
        """Return the text. A reader that waited for the one before can find it held now."""
        held = self._held
        return (
            held[1] if held is not None and held[0] == (kind, hash) else await stored_text(database, None, kind, hash)
        )

    def _drop(self) -> None:
        self._held = None
