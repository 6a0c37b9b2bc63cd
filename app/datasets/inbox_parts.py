"""Stores files of uploaded inboxes in the database, since every service and worker has a separate data directory."""

import asyncio
import zlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import InboxPart

_PART_BYTES = 4 << 20


async def save(tx: AsyncSession, file: Path, hash: str) -> None:
    """Store the file in the caller's transaction, unless it is stored already."""
    # Two files with the same hash can differ in their bytes, so their parts must not be mixed.
    await tx.execute(select(func.pg_advisory_xact_lock(int(hash[:15], 16))))
    if await tx.scalar(select(InboxPart.number).where(InboxPart.sha256 == hash).limit(1)) is not None:
        return
    parts = _parts(file)
    number = 0
    while (content := await asyncio.to_thread(next, parts, None)) is not None:
        await tx.execute(insert(InboxPart).values(sha256=hash, number=number, content=content))
        number += 1


def _parts(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(_PART_BYTES):
            yield zlib.compress(piece, level=1)


async def fetch(database: Database, store: DatasetStore, hash: str) -> None:
    """Write the inbox's file to the data directory, unless it is already there or the database does not have it."""
    if await asyncio.to_thread(store.inbox_path(hash).is_file):
        return
    file = store.scratch()
    try:
        number = 0
        async with database() as tx:
            while (part := await tx.get(InboxPart, (hash, number))) is not None:
                await asyncio.to_thread(_append, file, part.content)
                tx.expunge(part)
                number += 1
        if number:
            await asyncio.to_thread(store.keep_inbox, file, hash)
    finally:
        file.unlink(missing_ok=True)


def _append(file: Path, content: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(zlib.decompress(content))
