"""Which backends the settings make available here, and connections to them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.domain.names import TINY_BASE
from learnloop_service.app.errors import Unavailable
from learnloop_service.app.processes.engine import Engine, EngineProcess, EngineState, EngineUnavailable
from learnloop_service.app.settings import BACKENDS, Settings
from learnloop_service.training.backends import added, embedded, serverless
from learnloop_service.training.backends.added import BackendTraits
from learnloop_service.training.backends.base import Backend, BackendRefused, BackendUnavailable
from learnloop_service.training.backends.local import backend as local
from learnloop_service.training.backends.local.backend import missing, model_config
from learnloop_service.training.backends.serverless import KEY_SETTING, ServerlessAccess
from learnloop_service.training.base_defaults import Base
from learnloop_service.training.base_model_files import base_model_fault, parameter_count
from learnloop_service.training.base_verdicts import BaseVerdicts
from learnloop_service.training.tuning import Tuning, usual_tuning

OWN_TRAITS: Mapping[str, BackendTraits] = {
    embedded.NAME: embedded.TRAITS,
    serverless.NAME: serverless.TRAITS,
    local.NAME: local.TRAITS,
}
"""Those of the backends that come with the service."""

Connect = Callable[[str], Awaitable[Backend]]
"""Connects the named backend for the caller's event loop. Waits for the engine if the backend needs it."""


@asynccontextmanager
async def connected(connect: Connect, name: str, undone: str | None = None) -> AsyncIterator[Backend]:
    """Connect the named backend for as long as this is open.

    Raises Unavailable if the backend cannot be reached or fails meanwhile; `undone` is what cannot be done then.
    """
    try:
        backend = await connect(name)
        try:
            yield backend
        finally:
            await backend.close()
    except (EngineUnavailable, BackendUnavailable, BackendRefused) as error:
        raise Unavailable(f"{undone}: {error}" if undone else str(error)) from error


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend and, if it cannot be used here, the reason."""

    name: str
    refusal: str | None


def choices(settings: Settings) -> list[Choice]:
    """Return all backends."""
    return [Choice(name, refusal(settings, name)) for name in names()]


def names() -> list[str]:
    """Return the names of our backends, and of those that packages add under other names."""
    return [*BACKENDS, *(name for name in added.names() if name not in BACKENDS)]


def usable(settings: Settings) -> list[str]:
    """Return the names of the backends that can drive runs here."""
    return [choice.name for choice in choices(settings) if choice.refusal is None]


def refusal(settings: Settings, name: str, base_model: str | None = None) -> str | None:
    """Return why a run cannot use the backend (with the base model) and what to do about it, or None if it can."""
    if name not in names():
        return f"Unknown backend {name!r}. Available: {', '.join(names())}."
    if name == serverless.NAME and settings.wandb_api_key is None:
        return f"The backend serverless (W&B Training) needs the setting {KEY_SETTING}."
    if name == local.NAME and (lacks := missing()) is not None:
        return f"The backend local is not available here: {lacks}"
    if name not in BACKENDS and (refused := added.refusal(name)) is not None:
        return refused
    if name != embedded.NAME and base_model == TINY_BASE:
        return f"The backend {name} does not have the base model {TINY_BASE}; set model.base_model or ART_BASE_MODEL."
    return None


def traits(name: str) -> BackendTraits:
    """Return what a backend that is not refused takes."""
    return OWN_TRAITS[name] if name in OWN_TRAITS else added.traits(name)


def unusable_base_models(settings: Settings) -> dict[str, str]:
    """Return our configured base models that cannot be loaded, with the reasons. Reads files: call it in a thread."""
    if settings.engine_url is not None:
        return {}  # the directories are on another machine
    verdicts = BaseVerdicts(settings.data_dir)
    faults = {
        name: verdicts.fault(directory) or base_model_fault(directory)
        for name, directory in settings.base_models.items()
    }
    return {name: fault for name, fault in faults.items() if fault is not None}


def base_of(settings: Settings, backend: str, base_model: str, tuning: Tuning | None = None) -> Base:
    """Return what is known here of a base model and of how it is trained; `tuning` is None unless it was asked for.

    The size is unknown on backends that have base models of their own, and if the files are on another machine. Reads
    files: call it in a thread.
    """
    directory = settings.base_models.get(base_model)
    parameters = None if backend != embedded.NAME or directory is None else parameter_count(directory)
    if not parameters:
        return Base(base_model)
    return Base(base_model, parameters, (tuning or usual_tuning(parameters)).mode, settings.engine_device)


class Backends:
    """Connects to backends. The process of ART's local backend is started when it is first used."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        """Call it on the event loop that the engine and the local process belong to."""
        self._settings = settings
        self._engine = engine
        self._main_loop = asyncio.get_running_loop()
        self._local = local_process(settings)

    async def connect(self, name: str) -> Backend:
        """Return the named backend, connected for the caller's event loop. Can be called from any thread.

        Raises EngineUnavailable or BackendUnavailable, the latter also if the backend cannot be used here.
        """
        if (refused := refusal(self._settings, name)) is not None:
            raise BackendUnavailable(refused)
        if name == serverless.NAME:
            return await serverless.connect(access(self._settings))
        if name == local.NAME:
            await run_on_loop(self._main_loop, self._start_local())
            address = await run_on_loop(self._main_loop, self._local.address())
            return await local.connect(f"{address.url}/v1", address.key)
        if name != embedded.NAME:
            return await added.connect(name)
        address = await run_on_loop(self._main_loop, self._engine.address())
        return await embedded.connect(f"{address.url}/v1", address.key)

    async def stop(self) -> None:
        """End the local process if it is running."""
        await self._local.stop()

    async def _start_local(self) -> None:
        if self._local.state is EngineState.STOPPED:
            await self._local.start()


def access(settings: Settings) -> ServerlessAccess:
    """Return the configured access to W&B's service. WANDB_API_KEY must be set."""
    assert settings.wandb_api_key is not None
    return ServerlessAccess(
        settings.wandb_api_key.get_secret_value(),
        str(settings.serverless_url).rstrip("/"),
        settle_timeout_s=settings.serverless_quiet_s,
        stall_timeout_s=settings.serverless_silence_s,
    )


def local_process(settings: Settings) -> EngineProcess:
    """Return ART's local backend as a process supervised like the engine, in a separate directory."""
    config = model_config(settings.local_trainer_gpus, settings.local_inference_gpus, settings.local_arguments)
    command = (
        sys.executable,
        "-m",
        "learnloop_service.training.backends.local.server",
        "--model-config",
        json.dumps(config),
    )
    own_directory = settings.model_copy(update={"data_dir": settings.data_dir / local.NAME})
    return EngineProcess(own_directory, command, watched=False)  # loading a model blocks the process for minutes
