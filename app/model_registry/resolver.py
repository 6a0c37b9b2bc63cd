"""Resolves model names: the only place that turns a name into a model that the caller can sample.

A name is one of: a base model's name; `PROJECT/NAME` (the newest checkpoint); `PROJECT/NAME@STEP`; a name that a
checkpoint was promoted to; a run's id (its best checkpoint), also with `@STEP`; or the form of ART's clients,
`wandb-artifact:///ENTITY/PROJECT/NAME`, also with `:stepSTEP`. A promoted name takes precedence over a model of the
same name. A name without a project belongs to the caller's project.

Only the database is used for this. Whether the checkpoint exists is left to the server that samples it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.backends import Connect, connected
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Promotion, Run
from learnloop_service.app.domain.names import TINY_BASE
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import Conflict, NotFound
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.processes.engine import EngineHandle
from learnloop_service.app.releases.exposures import count
from learnloop_service.app.releases.split import Exposure, Requester, Split
from learnloop_service.app.runs.configuration import model_spec
from learnloop_service.app.settings import Settings
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.backends.registry import engine_backend, is_on_engine
from learnloop_service.training.protocol.model_name import ModelName

_RUN_ID = re.compile(r"(?P<id>[0-9A-HJKMNP-TV-Z]{26})(?:@(?P<step>[0-9]{1,9}))?")
_ARTIFACT = re.compile(r"wandb-artifact:///[^/]+/(?P<model>[^/]+/[^/:@]+)(?::step(?P<step>[0-9]{1,9}))?")
_WITHOUT_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:@(?P<step>[0-9]{1,9}))?")


class UnknownModelName(NotFound):
    """No model has that name, or the caller cannot see it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no model {name!r}.")

    def members(self) -> Mapping[str, Any]:
        return {"code": "model_not_found", "param": "model"}


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model that a name stands for."""

    name: str
    """Name for the engine: a base model's name, PROJECT/NAME, PROJECT/NAME@STEP, or an artifact's name."""
    step: int | None
    """None for a base model or the newest checkpoint."""
    run: Run | None = None
    """The run that was named, or the newest run that trains the model. None if only the engine knows the model."""
    promoted_as: str | None = None
    """The promoted name in the request, as PROJECT/NAME."""
    promoted_prompt: PromptReference | None = None
    """The prompt that the promoted name has."""
    exposure: Exposure | None = None
    """What the requester meets of the name's live release; None without one."""
    explore: Mapping[str, Any] | None = None
    """How sessions of the promoted name explore, as its promotion has it."""

    @property
    def prompt(self) -> PromptReference | None:
        """The prompt of a promoted name, else that of the run; None for the environment's texts."""
        if self.promoted_as is not None or self.run is None:
            return self.promoted_prompt
        prompt = self.run.request.get("prompt")
        return None if prompt is None else PromptReference.model_validate(prompt)

    @property
    def backend(self) -> str:
        """Name of the backend that has the model. A model that no run trains can only be on the engine."""
        return engine_backend() if self.run is None else self.run.backend


@dataclass(frozen=True, slots=True)
class ModelResolver:
    """Resolves names. Methods that take a name raise UnknownModelName."""

    database: Database
    engine: EngineHandle
    connect: Connect
    base_models: frozenset[str]

    async def resolve(self, caller: Caller, name: str, requester: Requester | None = None) -> ResolvedModel:
        """Return the model that a name stands for. A live release of the name divides the requests that have a
        `requester`; for others the name means its stable checkpoint.

        Raises Conflict for a run that has no checkpoint yet.
        """
        if name in self.base_models:
            return ResolvedModel(name, None)
        if match := _RUN_ID.fullmatch(name):
            return await self._of_run_id(caller, match["id"], match["step"])
        if match := _ARTIFACT.fullmatch(name):
            return await self._of_artifact(caller, name, match["model"], match["step"])
        try:
            model = ModelName.parse(name if "/" in name or caller.project is None else f"{caller.project}/{name}")
        except ValueError:
            return _of_any_project(caller, name)
        if not caller.sees(model.project):
            raise UnknownModelName(name)
        user = None if requester is None else requester.user_hash
        if model.step is None and (current := await Promotions(self.database).current_split(model, user)):
            return await self._promoted(str(model), *current, requester)
        return ResolvedModel(str(model), model.step, await self._newest_run(model))

    async def _promoted(
        self, name: str, promoted: Promotion, split: Split | None, stable: Promotion, requester: Requester | None
    ) -> ResolvedModel:
        exposure = None if split is None or requester is None else split.exposure(requester)
        if exposure is None:
            model, prompt = ModelName(promoted.project, promoted.model_name, promoted.step), promoted.prompt
        else:
            count(exposure)
            model, prompt = exposure.model(stable), exposure.prompt(stable)
        run = await self._newest_run(model)
        return ResolvedModel(str(model), model.step, run, name, prompt, exposure, promoted.explore)

    async def model(self, caller: Caller, name: ModelName) -> ResolvedModel:
        """Return the model itself, ignoring promotions to its name."""
        if not caller.sees(name.project):
            raise UnknownModelName(str(name))
        return ResolvedModel(str(name), name.step, await self._newest_run(name))

    async def endpoint(self, model: ResolvedModel) -> Endpoint:
        """Return the endpoint that samples the model. The engine is not called; another backend is called once for its
        name of the checkpoint.

        Raises Unavailable.
        """
        if is_on_engine(model.backend):
            address = await self.engine.address()
            return Endpoint(f"{address.url}/v1", address.key, model.name, remembers=True, tells_token_ids=True)
        assert model.run is not None
        async with connected(self.connect, model.backend) as backend:
            policy = await backend.register(model_spec(model.run))
            return policy.endpoint(model.step)

    async def _of_artifact(self, caller: Caller, name: str, model: str, step: str | None) -> ResolvedModel:
        try:
            checkpoint = ModelName.parse(model).at(None if step is None else int(step))
        except ValueError:
            raise UnknownModelName(name) from None
        if not caller.sees(checkpoint.project):
            raise UnknownModelName(name)
        return ResolvedModel(name, checkpoint.step, await self._newest_run(checkpoint))

    async def _of_run_id(self, caller: Caller, run_id: str, step: str | None) -> ResolvedModel:
        async with self.database() as tx:
            run = await tx.get(Run, run_id)
        if run is None or not caller.sees(run.model_project):
            raise UnknownModelName(run_id)
        return of_run(run, None if step is None else int(step))

    async def _newest_run(self, name: ModelName) -> Run | None:
        trains_it = (Run.model_project == name.project, Run.model_name == name.name)
        async with self.database() as tx:
            query = select(Run).where(*trains_it).order_by(Run.id.desc()).limit(1)
            return (await tx.execute(query)).scalar_one_or_none()


def of_run(run: Run, step: int | None) -> ResolvedModel:
    """Return the run's checkpoint of that step (None: its best one). Raises Conflict if it has none yet."""
    step = run.best_step if step is None else step
    if step is None:
        raise Conflict(f"Run {run.id} has no checkpoint yet; retry after its baseline evaluation.")
    return ResolvedModel(str(ModelName(run.model_project, run.model_name, step)), step, run)


def base_models(settings: Settings) -> frozenset[str]:
    """Return the names of the models that every caller can use."""
    return frozenset({TINY_BASE, *settings.base_models})


def _of_any_project(caller: Caller, name: str) -> ResolvedModel:
    """Resolve a name without a project for callers that see all projects, since it could be in any of them."""
    match = _WITHOUT_PROJECT.fullmatch(name)
    if match is None or caller.project is not None:
        raise UnknownModelName(name)
    return ResolvedModel(name, None if match["step"] is None else int(match["step"]))
