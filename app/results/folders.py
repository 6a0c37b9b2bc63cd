"""Removes the folders of deleted runs."""

import asyncio
import re
import shutil
from pathlib import Path

import structlog
from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run

_DATABASE_FILE = ".database"
"""Name of the file that names the database of the runs in the sibling folders."""
_RUN_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_AT_ONCE = 1_000

log = structlog.get_logger(__name__)


async def remove_folder(data_dir: Path, run_id: str) -> None:
    """Remove all files of a run. Those that cannot be removed now are removed at the next start."""
    await asyncio.to_thread(shutil.rmtree, data_dir / "runs" / run_id, ignore_errors=True)


async def remove_leftovers(database: Database, data_dir: Path, database_name: str) -> None:
    """Remove folders of runs that are no longer in the database. This process died before it removed them, or another
    process deleted the runs.

    Folders that belong to a database other than `database_name` stay, because their runs can still exist there.
    """
    runs = data_dir / "runs"
    try:
        if not await asyncio.to_thread(_belongs_to, runs, database_name):
            return
        ids = await asyncio.to_thread(_run_ids, runs)
    except OSError as error:  # a full or read-only disk must not stop the service
        log.warning("folders of runs not looked at", error=str(error))
        return
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        async with database() as tx:
            there = set((await tx.execute(select(Run.id).where(Run.id.in_(some)))).scalars())
        for run_id in (id for id in some if id not in there):
            await remove_folder(data_dir, run_id)
            log.info("removed the folder of a deleted run", run_id=run_id)


def _belongs_to(runs: Path, database: str) -> bool:
    """Whether the folders belong to that database. An unmarked directory is marked now, and used from the next start
    on."""
    mark = runs / _DATABASE_FILE
    if mark.is_file():
        return mark.read_bytes() == database.encode()
    runs.mkdir(exist_ok=True)
    mark.write_text(database)
    return False


def _run_ids(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir() if _RUN_ID.fullmatch(path.name))
