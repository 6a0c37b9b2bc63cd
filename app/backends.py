"""Which backends the settings make available here, and connections to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.domain.names import TINY_BASE
from learnloop_service.app.errors import Unavailable
from learnloop_service.app.processes.engine import (
    EngineAddress,
    EngineHandle,
    EngineProcess,
    EngineState,
    EngineUnavailable,
)
from learnloop_service.app.settings import Settings
from learnloop_service.training.backends import registry
from learnloop_service.training.backends.base import Backend, BackendRefused, BackendUnavailable
from learnloop_service.training.bases.defaults import BaseModelFacts
from learnloop_service.training.bases.files import base_model_fault, parameter_count
from learnloop_service.training.bases.verdicts import BaseVerdicts
from learnloop_service.training.tuning import Tuning, usual_tuning

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
class BackendChoice:
    """A backend and, if it cannot be used here, the reason."""

    name: str
    refusal: str | None


def choices() -> list[BackendChoice]:
    """Return all backends."""
    return [BackendChoice(name, refusal(name)) for name in registry.names()]


def usable() -> list[str]:
    """Return the names of the backends that can drive runs here."""
    return [choice.name for choice in choices() if choice.refusal is None]


def refusal(name: str, base_model: str | None = None) -> str | None:
    """Return why a run cannot use the backend (with the base model) and what to do about it, or None if it can."""
    if name not in registry.names():
        return f"Unknown backend {name!r}. Available: {', '.join(registry.names())}."
    if (refused := registry.refusal(name)) is not None:
        return refused
    if base_model == TINY_BASE and not registry.is_on_engine(name):
        return f"The backend {name} does not have the base model {TINY_BASE}; set model.base_model or ART_BASE_MODEL."
    return None


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


def base_of(settings: Settings, backend: str, base_model: str, tuning: Tuning | None = None) -> BaseModelFacts:
    """Return what is known here of a base model and of how it is trained; `tuning` is None unless it was asked for.

    The size is unknown on backends that have base models of their own, and if the files are on another machine. Reads
    files: call it in a thread.
    """
    directory = settings.base_models.get(base_model)
    parameters = None if directory is None or not registry.is_on_engine(backend) else parameter_count(directory)
    if not parameters:
        return BaseModelFacts(base_model)
    return BaseModelFacts(base_model, parameters, (tuning or usual_tuning(parameters)).mode, settings.engine_device)


class Backends:
    """Connects to backends, and lends them the engine and processes of their own."""

    def __init__(self, settings: Settings, engine: EngineHandle) -> None:
        """Call it on the event loop that the engine and the processes belong to."""
        self._settings = settings
        self._engine = engine
        self._main_loop = asyncio.get_running_loop()
        self._processes: dict[str, EngineProcess] = {}

    async def connect(self, name: str) -> Backend:
        """Return the named backend, connected for the caller's event loop. Can be called from any thread.

        Raises BackendUnavailable, also if the backend cannot be used here, or BackendRefused.
        """
        if (refused := refusal(name)) is not None:
            raise BackendUnavailable(refused)
        return await registry.connect(name, self)

    async def engine(self) -> EngineAddress:
        """Return the engine's address. Raises BackendUnavailable."""
        try:
            return await run_on_loop(self._main_loop, self._engine.address())
        except EngineUnavailable as error:
            raise BackendUnavailable(str(error)) from error

    async def process(self, name: str, command: Sequence[str]) -> EngineAddress:
        """Return the address of a backend's own process, which is started when it is first used, and supervised like
        the engine in a separate directory. Raises BackendUnavailable."""
        try:
            return await run_on_loop(self._main_loop, self._address_of(name, command))
        except EngineUnavailable as error:
            raise BackendUnavailable(str(error)) from error

    async def stop(self) -> None:
        """End the processes that are running."""
        for process in self._processes.values():
            await process.stop()

    async def _address_of(self, name: str, command: Sequence[str]) -> EngineAddress:
        if name not in self._processes:
            own_directory = self._settings.model_copy(update={"data_dir": self._settings.data_dir / name})
            # Not watched: loading a model blocks such a process for minutes.
            self._processes[name] = EngineProcess(own_directory, tuple(command), watched=False)
        process = self._processes[name]
        if process.state is EngineState.STOPPED:
            await process.start()
        return await process.address()
