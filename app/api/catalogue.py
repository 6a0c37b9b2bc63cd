"""What learn-loops can use: backends, environments, judges and agents."""

import asyncio
from collections.abc import Mapping, Sequence

from fastapi import Request
from pydantic import Field

import learnloop_service.environment.registry
import learnloop_service.training.rollout.agents.registry
from learnloop_service.app.api.added_routes import AddedUpload
from learnloop_service.app.api.dependencies import CurrentService, CurrentSettings, RunIdQuery
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.backends import BackendChoice, choices, unusable_base_models
from learnloop_service.app.listed_models import ListedModels
from learnloop_service.app.operations.fitting_judges import Examined, examined, judges_here
from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.environment.base import Json
from learnloop_service.training.backends.registry import is_on_engine, listed_settings, loaded_traits

router = keyed_router("catalogue")


_SINGLE_PAGE = "Always null: the list has a single page."


class Named(ResponseModel):
    """Something that a learn-loop can use."""

    name: str
    """Its name, as requests use it."""


class Catalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[Named]
    """All there are."""
    next_cursor: None = Field(default=None, description=_SINGLE_PAGE)


class DocumentOut(ResponseModel):
    """A setting of an environment whose value is a list, which is stored once under its hash."""

    setting: str
    """Its name in `environment.config`."""
    title: str
    """What it is called."""
    description: str
    """What it is made of, and what happens without it. Empty if the environment does not say."""
    example: list[Json]
    """A short one. Empty if the environment does not give one."""


class EnvironmentOut(Named):
    """An environment that agents can be trained in."""

    description: str
    """What the agent does in it. Empty if the environment does not say."""
    task: dict[str, Json] | None
    """What a task of one's own is made of, for `input` of `POST /ask`: a JSON schema of an object, whose properties
    have titles. Null if the environment does not say."""
    documents: list[DocumentOut]
    """Its settings that are documents of their own, beside `scenarios`."""


class EnvironmentCatalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[EnvironmentOut]
    """All there are."""
    next_cursor: None = Field(default=None, description=_SINGLE_PAGE)


class JudgeOut(Named):
    """A judge, whether it can be used here, and whether it can score the rollouts of the run that was asked about."""

    needs: str | None = None
    """What it needs that is missing here, such as a language model or its key; null if its default settings work."""
    unfit: str | None = None
    """Why it can score none of that run's rollouts; null if it can, or if no run was named."""


class JudgeCatalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[JudgeOut]
    """All there are."""
    next_cursor: None = Field(default=None, description=_SINGLE_PAGE)


class UnusableBaseModel(Named):
    """A base model that cannot be loaded."""

    reason: str
    """The file at fault, and what is wrong with it."""


class BackendSettingOut(Named):
    """A setting of a backend: an environment variable."""

    description: str
    """What it is for."""
    is_set: bool
    """Whether it has a value; the value is not shown."""


class BackendOut(Named):
    """A backend, and whether it can be used here."""

    available: bool
    """Whether runs can use it."""
    reason: str | None
    """Why it is not available, and what to do about it."""
    unusable_base_models: list[UnusableBaseModel]
    """Base models that are configured for it and cannot be loaded."""
    on_engine: bool
    """Whether its models are those of the service's engine."""
    train_options: list[str]
    """Fields of `train_options` that it takes."""
    takes_tuning: bool
    """Whether it takes `model.tuning` and `model.enable_thinking`."""
    trains_on_demonstrations: bool
    """Whether it takes `warm_start`."""
    samples_while_training: bool
    """Whether it takes `pipeline.max_staleness`."""
    settings: list[BackendSettingOut]
    """Environment variables that it reads."""


class BackendCatalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[BackendOut]
    """All there are."""
    next_cursor: None = Field(default=None, description=_SINGLE_PAGE)


class UploadOut(ResponseModel):
    """A kind of file that can be uploaded, which an installed package adds."""

    path: str
    """Path to which the file is posted as it is, with its `name` in the query."""
    label: str
    """What is uploaded, as a command."""
    help: str
    """What the file can be."""
    accept: str
    """Endings of such files, separated by commas."""
    noun: str
    """What the file has many of. The plural is the field of the reply that says how many were stored."""


class UploadCatalogue(ResponseModel):
    """The complete list. It has a single page."""

    items: list[UploadOut]
    """All there are."""
    next_cursor: None = Field(default=None, description=_SINGLE_PAGE)


@router.get("/uploads")
async def list_uploads(request: Request) -> UploadCatalogue:
    """List the kinds of files that installed packages can store."""
    added: Mapping[str, AddedUpload] = request.app.state.uploads
    return UploadCatalogue(
        items=[
            UploadOut(path=path, label=upload.label, help=upload.help, accept=upload.accept, noun=upload.noun)
            for path, upload in added.items()
        ]
    )


@router.get("/backends")
async def list_backends(settings: CurrentSettings) -> BackendCatalogue:
    """List the backends that can train models, and whether each is available here."""
    unusable = await asyncio.to_thread(unusable_base_models, settings)
    bases = [UnusableBaseModel(name=name, reason=reason) for name, reason in unusable.items()]
    return BackendCatalogue(items=[_backend(choice, bases) for choice in choices()])


def _backend(choice: BackendChoice, bases: list[UnusableBaseModel]) -> BackendOut:
    """Return a backend; `bases` are the engine's that cannot be loaded."""
    on_engine, traits = is_on_engine(choice.name), loaded_traits(choice.name)
    return BackendOut(
        name=choice.name,
        available=choice.refusal is None,
        reason=choice.refusal,
        unusable_base_models=bases if on_engine else [],
        on_engine=on_engine,
        train_options=sorted(traits.train_options),
        takes_tuning=traits.takes_tuning,
        trains_on_demonstrations=traits.trains_on_demonstrations,
        samples_while_training=traits.samples_while_training,
        settings=[
            BackendSettingOut(name=setting.variable, description=setting.description, is_set=setting.is_set)
            for setting in listed_settings(choice.name)
        ],
    )


@router.get("/environments")
async def list_environments() -> EnvironmentCatalogue:
    """List the environments that agents can be trained in."""
    return EnvironmentCatalogue(items=await asyncio.to_thread(_environments))


def _environments() -> list[EnvironmentOut]:
    environments = learnloop_service.environment.registry
    return [
        EnvironmentOut(
            name=name,
            description=str(environments.traits(name).description),
            task=environments.task_schema(name),
            documents=[
                DocumentOut(
                    setting=setting,
                    title=document.title or setting,
                    description=document.description,
                    example=list(document.example),
                )
                for setting, document in environments.traits(name).documents.items()
            ],
        )
        for name in environments.names()
    ]


@router.get("/judges")
async def list_judges(service: CurrentService, run_id: RunIdQuery = None) -> JudgeCatalogue:
    """List the judges, and what those need that cannot be used here yet. With `run_id` the list says which of them fit
    the run's rollouts."""
    rollouts: Sequence[Examined] = ()
    if run_id is not None:
        await service.queries.require_run(run_id)
        rollouts = await examined(service.database, run_id)
    fits = await asyncio.to_thread(judges_here, rollouts, ListedModels(service.settings))
    return JudgeCatalogue(items=[JudgeOut(name=name, needs=fit.needs, unfit=fit.unfit) for name, fit in fits.items()])


@router.get("/agents")
async def list_agents() -> Catalogue:
    """List the agents that own their loop. Each can replace the built-in loop."""
    return Catalogue(items=[Named(name=name) for name in learnloop_service.training.rollout.agents.registry.names()])
