"""The engine's models as ART's clients train them through this service: who owns them, and when they can be changed.

The engine does not know about projects, so every id in a request is looked up here first. A model of another project is
reported exactly like one that does not exist.
"""

import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.backends import Connect
from learnloop_service.app.db.database import Database
from learnloop_service.app.errors import Conflict, Forbidden, InvalidRequest, NotFound
from learnloop_service.app.model_registry.checkpoints import Checkpoints
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.model_registry.resolver import ModelResolver
from learnloop_service.app.releases.live import require_unneeded
from learnloop_service.app.runs.store import RunStore
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.registry import engine_backend, is_on_engine
from learnloop_service.training.protocol.model_name import ModelName

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KNOWN_JOBS = 10_000


class UnknownTrainable(NotFound):
    """The caller can see no model or training job with that id."""

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"There is no {kind} {id!r}.")
        self.kind = kind

    def members(self) -> Mapping[str, Any]:
        return {"code": f"{self.kind.removeprefix('training ')}_not_found"}


@dataclass(frozen=True, slots=True)
class KnownJobs:
    """A cache of the models of training jobs, which never change. Clients poll a job's events every second."""

    _models: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def get(self, job_id: str) -> str | None:
        """Return the id of the job's model if it is cached."""
        return self._models.get(job_id)

    def add(self, job_id: str, model_id: str) -> None:
        """Cache the model of a job. The oldest entries are dropped."""
        self._models[job_id] = model_id
        while len(self._models) > _KNOWN_JOBS:
            self._models.popitem(last=False)


@dataclass(frozen=True, slots=True)
class TrainableModels:
    """The models that a caller can see. Methods raise Unavailable, and UnknownTrainable for an unknown id."""

    caller: Caller
    database: Database
    engine: EngineClient
    connect: Connect
    store: RunStore
    known_jobs: KnownJobs

    async def listed(self) -> list[dict[str, Json]]:
        """Return the engine's descriptions of the models."""
        return [model for model in await self.engine.trainable_models() if self.caller.sees(model["project"])]

    async def name(self, model_id: str) -> ModelName:
        """Return the name of the model with that id."""
        description = await self._described(f"/preview/models/{model_id}") if _ID.fullmatch(model_id) else None
        if description is None or not self.caller.sees(description["project"]):
            raise UnknownTrainable("model", model_id)
        return ModelName(description["project"], description["name"])

    async def require_job(self, job_id: str) -> None:
        """Raise UnknownTrainable unless the training job belongs to a model that the caller can see."""
        model_id = self.known_jobs.get(job_id)
        if model_id is None and _ID.fullmatch(job_id):
            description = await self._described(f"/preview/training-jobs/{job_id}")
            if description is not None:
                model_id = str(description["model_id"])
                self.known_jobs.add(job_id, model_id)
        try:
            if model_id is not None and (self.caller.project is None or await self.name(model_id)):
                return
        except UnknownTrainable:
            pass
        raise UnknownTrainable("training job", job_id)

    async def creation(self, models: ModelResolver, body: Mapping[str, Json]) -> dict[str, Json]:
        """Return the request for a new model in the caller's project, from a base model that the caller can use.

        Raises Forbidden for another project, UnknownModelName for another base, InvalidRequest or Conflict.
        """
        project, base = body.get("project") or self.caller.project, body.get("base_model")
        if not isinstance(base, str):
            raise InvalidRequest(("body", "base_model"), "base_model must be a string: the name of a model")
        if self.caller.project not in (None, project):
            raise Forbidden(f"This API key belongs to project {self.caller.project}; project cannot be another one.")
        source = await models.resolve(self.caller, base)
        if not is_on_engine(source.backend):
            raise Conflict(f"{base} is on the backend {source.backend}. Only models of the engine can be forked here.")
        return {**body, "project": project, "base_model": source.name}

    @asynccontextmanager
    async def to_train(self, model: ModelName) -> AsyncIterator[None]:
        """Keep runs from starting to train the model while this is open. Raises ModelBusy if a run is live."""
        async with self.store.holding_model(engine_backend(), model):
            yield

    @asynccontextmanager
    async def to_delete(self, model: ModelName) -> AsyncIterator[None]:
        """Like `to_train`. Raises Conflict if a run or a live release needs the model or it is promoted."""
        async with self.store.holding_model(engine_backend(), model, unneeded=True):
            await require_unneeded(self.database, model)
            if promoted := await Promotions(self.database).all(model.project, model=model.name):
                raise Conflict(f"{model} is promoted as {promoted[0].project}/{promoted[0].name}.")
            yield

    @asynccontextmanager
    async def to_delete_checkpoints(self, model: ModelName, steps: Collection[int]) -> AsyncIterator[None]:
        """Like `to_train`. Raises Conflict if one of the checkpoints must be kept."""
        checkpoints = Checkpoints(self.database, self.engine, self.connect, model, engine_backend())
        async with self.store.holding_model(engine_backend(), model):
            for step, why in (await checkpoints.in_use()).items():
                if step in steps:
                    raise Conflict(f"Checkpoint {step} of {model} {why}.")
            yield
        await checkpoints.note_deleted(list(steps))

    async def _described(self, path: str) -> dict[str, Json] | None:
        try:
            return await self.engine.described(path)
        except NotFound:
            return None
