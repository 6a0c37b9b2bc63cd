"""The folder of a run's results, `<data_dir>/runs/<run id>/results`: a copy of the documents, for users who read files.

The database has everything, so a full or read-only disk is reported (`run.results_error`) and does not fail the run.
The next successful write also writes what is missing.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import structlog
from sqlalchemy import update

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.results.documents import Results

log = structlog.get_logger(__name__)


def results_folder(data_dir: Path, run_id: str) -> Path:
    """Return the folder of a run's result files."""
    return data_dir / "runs" / run_id / "results"


def sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each existing file, by name."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}
    except OSError:
        return {}


class ResultsFiles:
    """Writes the folders of runs. Calls for the same run must not overlap."""

    def __init__(self, database: Database, data_dir: Path) -> None:
        self._database = database
        self._results = Results(database)
        self._data_dir = data_dir

    async def write(self, run_id: str, *, completed: bool = False) -> None:
        """Write the missing files of a run. `completed` says that the run is completed or is about to be. Raises
        DATABASE_DOWN only."""
        error = None
        try:
            await self._write_missing(run_id, completed)
        except DATABASE_DOWN:
            raise
        except Exception as failure:  # a problem with the folder must never cost the run its training
            error = f"{type(failure).__name__}: {failure}"
            log.warning("results not written", run_id=run_id, error=error)
        changed = update(Run).where(Run.id == run_id, Run.results_error.is_distinct_from(error))
        async with self._database.begin() as tx:
            await tx.execute(changed.values(results_error=error))

    async def _write_missing(self, run_id: str, completed: bool) -> None:
        folder = results_folder(self._data_dir, run_id)
        there = await asyncio.to_thread(sizes, folder)
        for names, pieces in await self._results.open_all(run_id, there, completed=completed):
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            await _write([folder / name for name in names], pieces)


async def _write(paths: Sequence[Path], pieces: AsyncIterator[Sequence[bytes]]) -> None:
    """Write all of the files or none of them. Each piece has a part for each file."""
    unfinished = [path.with_name(f".{path.name}.unfinished") for path in paths]
    with ExitStack() as stack:
        files = []
        for path in unfinished:
            files.append(await asyncio.to_thread(path.open, "wb"))
            stack.callback(_discard, files[-1])
        async for parts in pieces:
            await asyncio.to_thread(_append, files, parts)
        for file, path in zip(files, paths, strict=True):
            await asyncio.to_thread(_publish, file, path)


def _append(files: Sequence[BinaryIO], parts: Sequence[bytes]) -> None:
    for file, part in zip(files, parts, strict=True):
        file.write(part)


def _discard(file: BinaryIO) -> None:
    """Remove the file, unless it was published."""
    with suppress(OSError):  # a full disk was reported above
        file.close()
    Path(file.name).unlink(missing_ok=True)


def _publish(file: BinaryIO, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())  # otherwise a power failure could leave an empty file with this name
    file.close()
    Path(file.name).replace(path)
