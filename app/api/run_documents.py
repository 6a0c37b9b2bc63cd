"""The response of `GET /runs/{id}`. Many clients poll the same run, so concurrent requests share one read."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from learnloop_service.app.aio.coalesced_reads import CoalescedReads
from learnloop_service.app.api.presentation import run_whole
from learnloop_service.app.db.database import Database
from learnloop_service.app.errors import existing
from learnloop_service.app.runs.claims import Limits
from learnloop_service.app.runs.queries import RunFigures, RunQueries
from learnloop_service.app.runs.queue_position import queue_position


class RunDocuments:
    """Provides runs as JSON text."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self._queries = RunQueries(database)
        self._limits = limits
        self.reads = CoalescedReads(self._read)

    async def get(self, run_id: str) -> bytes:
        """Return the current state of a run. Raises NotFound."""
        return existing(await self.reads.get(run_id), "run", run_id)

    async def _read(self, run_ids: Sequence[str]) -> dict[str, bytes]:
        by_run = await self._queries.figures(run_ids)
        return {run_id: await self._document(figures) for run_id, figures in by_run.items()}

    async def _document(self, figures: RunFigures) -> bytes:
        queue = await queue_position(self._database, figures.run, self._limits)
        return run_whole(figures, queue).model_dump_json().encode()


@asynccontextmanager
async def open_run_documents(database: Database, limits: Limits) -> AsyncIterator[RunDocuments]:
    """Open the documents. `limits` are the limits for which queued runs wait."""
    documents = RunDocuments(database, limits)
    try:
        yield documents
    finally:
        await documents.reads.close()
