"""Deletes a run that has ended: its rows, its files, and its model unless another run needs it."""

import asyncio

from learnloop_service.app.backends import connected
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import Verb
from learnloop_service.app.errors import Unavailable
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.releases.live import require_unneeded
from learnloop_service.app.resources import Resources
from learnloop_service.app.results.folders import remove_folder
from learnloop_service.app.runs.configuration import model_spec
from learnloop_service.app.runs.store import RunStore, require_verb
from learnloop_service.training.protocol.model_name import ModelName

_ENGINE_TIMEOUT_S = 20.0
"""Time limit for deleting the model, because the run's row is locked meanwhile."""


async def remove(resources: Resources, store: RunStore, run_id: str) -> Run:
    """Delete the run and return its row.

    Raises NotFound, NotAllowed, LiveRelease if a release needs its model and no other run has it, or Unavailable, and
    then deletes nothing. A promoted model is kept, and so is a model on an engine that only other workers can reach.
    """
    run = await store.get(run_id)
    require_verb(run, Verb.DELETE)
    undone = "The model of the run cannot be deleted now"

    async def forget_model() -> None:
        if run.started_at is None:
            return
        await require_unneeded(resources.database, ModelName(run.model_project, run.model_name))
        if not resources.reaches(run.engine):
            return
        if await Promotions(resources.database).all(run.model_project, model=run.model_name):
            return
        async with asyncio.timeout(_ENGINE_TIMEOUT_S):
            async with connected(resources.connect, run.backend, undone) as backend:
                await backend.delete(model_spec(run))

    try:
        removed = await store.delete(run_id, forget_model)
    except TimeoutError as error:
        raise Unavailable(f"{undone}: the engine is busy") from error
    await remove_folder(resources.settings.data_dir, run_id)  # after the commit: a crash can leave files but no rows
    return removed
