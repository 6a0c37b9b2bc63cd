"""The response of `GET /runs/{id}`. Many clients poll the same run, so simultaneous requests share one read."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from app.aio.coalesced_reads import CoalescedReads
from app.api.presentation import run_whole
from app.errors import NotFound
from app.runs.leases import Limits
from app.runs.queries import RunFigures
from app.runs.queue_position import place_of
from app.service import Service


class RunDocuments:
    """The runs of a service as JSON text."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self._service = service
        self._limits = Limits(settings.max_runs_per_project, settings.max_runs_per_backend)
        self.reads = CoalescedReads(self._read)

    async def get(self, run_id: str) -> bytes:
        """A run as it is now. Raises NotFound."""
        if (document := await self.reads.get(run_id)) is None:
            raise NotFound(f"There is no run {run_id!r}.")
        return document

    async def _read(self, run_ids: Sequence[str]) -> dict[str, bytes]:
        found = await self._service.queries.figures(run_ids)
        return {run_id: await self._document(figures) for run_id, figures in found.items()}

    async def _document(self, figures: RunFigures) -> bytes:
        place = await place_of(self._service.sessions, figures.run, self._limits)
        return run_whole(figures, place).model_dump_json().encode()


@asynccontextmanager
async def open_run_documents(service: Service) -> AsyncIterator[RunDocuments]:
    """The documents of a running service."""
    documents = RunDocuments(service)
    try:
        yield documents
    finally:
        await documents.reads.close()
