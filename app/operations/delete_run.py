"""Deletes a run that has ended: its rows, its model where no other run needs it, its files."""

import asyncio

from app.db.tables import Run
from app.domain.run_state import Verb
from app.errors import Unavailable
from app.model_registry.promotions import Promotions
from app.processes.engine import EngineUnavailable
from app.results.folders import remove_folder
from app.runs.configuration import model_spec
from app.runs.store import require_verb
from app.service import Service
from training.backends.base import BackendRefused, BackendUnavailable

_PATIENCE_S = 20.0
"""For the engine: the run's row is locked meanwhile."""


async def remove(service: Service, run_id: str) -> Run:
    """Delete the run; returns what it was. Raises NotFound, NotAllowed, or Unavailable: then everything is there still.

    A model that is promoted stays, and so does one on an engine that only other workers reach.
    """
    run = await service.store.get(run_id)
    require_verb(run, Verb.DELETE)

    async def forget_model() -> None:
        if run.started_at is None or not service.reaches(run.engine):
            return
        if await Promotions(service.sessions).all(run.model_project, model=run.model_name):
            return
        async with asyncio.timeout(_PATIENCE_S):
            backend = await service.connect(run.backend)
            try:
                await backend.delete(model_spec(run))
            finally:
                await backend.close()

    try:
        removed = await service.store.delete(run_id, forget_model)
    except (EngineUnavailable, BackendUnavailable, BackendRefused, TimeoutError) as error:
        raise Unavailable(f"The model of the run cannot be deleted now: {error or 'the engine is busy'}") from error
    await remove_folder(service.settings.data_dir, run_id)  # after the commit: a crash leaves files, never rows
    return removed
