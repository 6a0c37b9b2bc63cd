"""Reads entries of runs' journals, and drops those that a retry must not reuse."""

import zlib
from collections import defaultdict

from sqlalchemy import delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import Journal
from learnloop_service.training.journal import TRAIN_INTENT, unscored


def text_of(value: bytes) -> str | None:
    """Return the text of a stored value, or None if it is damaged, which can show even without a checksum."""
    try:
        return zlib.decompress(value).decode()
    except (zlib.error, UnicodeDecodeError):
        return None


async def drop_unscored(tx: AsyncSession, run_id: str) -> None:
    """Drop a run's verdicts that lack a score, so that its judge is asked again."""
    names = or_(Journal.name.startswith("judge/"), Journal.name.startswith(TRAIN_INTENT))
    query = select(Journal.iteration, Journal.name, Journal.value).where(Journal.run_id == run_id, names)
    entries = defaultdict[int, dict[str, str]](dict)
    for iteration, name, value in await tx.execute(query):
        if (text := text_of(value)) is not None:  # damaged entries are repaired when a worker reads them
            entries[iteration][name] = text
    for iteration, texts in entries.items():
        if dropped := unscored(texts):
            of_dropped = (Journal.run_id == run_id, Journal.iteration == iteration, Journal.name.in_(dropped))
            await tx.execute(delete(Journal).where(*of_dropped))
