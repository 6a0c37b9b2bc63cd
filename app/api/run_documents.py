"""The response of `GET /runs/{id}`. Many clients poll the same run, so concurrent requests share one read."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from learnloop_service.app.aio.coalesced_reads import CoalescedReads
from learnloop_service.app.api.presentation import run_whole
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import TERMINAL
from learnloop_service.app.errors import DATABASE_DOWN, existing
from learnloop_service.app.runs.claims import Limits
from learnloop_service.app.runs.forecast import forecast, stopping_of, used_by
from learnloop_service.app.runs.queries import RunFigures, RunQueries
from learnloop_service.app.runs.queue_position import queue_position
from learnloop_service.app.schemas.runs import RunForecastOut

_KEPT = 256  # forecasts, of a kilobyte each
log = structlog.get_logger(__name__)


class RunDocuments:
    """Provides runs as JSON text."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self._queries = RunQueries(database)
        self._limits = limits
        self._forecasts: dict[tuple[str, int, str], RunForecastOut | None] = {}
        self.reads = CoalescedReads(self._read)

    async def get(self, run_id: str) -> bytes:
        """Return the current state of a run. Raises NotFound."""
        return existing(await self.reads.get(run_id), "run", run_id)

    async def _read(self, run_ids: Sequence[str]) -> dict[str, bytes]:
        by_run = await self._queries.figures(run_ids)
        return {run_id: await self._document(figures) for run_id, figures in by_run.items()}

    async def _document(self, figures: RunFigures) -> bytes:
        queue = await queue_position(self._database, figures.run, self._limits)
        return run_whole(figures, queue, await self._forecast(figures.run)).model_dump_json().encode()

    async def _forecast(self, run: Run) -> RunForecastOut | None:
        """Return the forecast, made once an iteration. Without it the document is still right, so no error leaves."""
        key, can_be_made = (run.id, run.next_iteration, run.status), run.next_iteration > 0
        if run.status in TERMINAL:
            can_be_made &= bool(run.request.get("stop_when"))
        if can_be_made and key not in self._forecasts:
            try:
                stopping, used = await stopping_of(self._database, run), await used_by(self._database, run)
                self._forecasts[key] = await asyncio.to_thread(forecast, run, stopping, used)
            except DATABASE_DOWN:
                raise
            except Exception:
                log.exception("no forecast", run_id=run.id)
                self._forecasts[key] = None
            for old in [*self._forecasts][:-_KEPT]:
                del self._forecasts[old]
        return self._forecasts.get(key)


@asynccontextmanager
async def open_run_documents(database: Database, limits: Limits) -> AsyncIterator[RunDocuments]:
    """Open the documents. `limits` are the limits for which queued runs wait."""
    documents = RunDocuments(database, limits)
    try:
        yield documents
    finally:
        await documents.reads.close()
