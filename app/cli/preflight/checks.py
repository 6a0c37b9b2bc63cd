"""Checks of a run that need nothing to be started. Each looks at one thing, and says how to fix it."""

import asyncio
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil

from learnloop_service.app.backends import refusal
from learnloop_service.app.db.database import DatabaseUrlError, parse_url
from learnloop_service.app.db.reachable import NoConnection, connect_once
from learnloop_service.app.domain.names import TINY_BASE
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.listed_models import ListedModels
from learnloop_service.app.operations.start.base_model_warnings import base_model_findings
from learnloop_service.app.operations.start.run_disk import REMEDY, need_of
from learnloop_service.app.operations.start.run_plan import judge_with_defaults, plan_of, plan_with_defaults
from learnloop_service.app.processes.cores import usable_cores
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.settings import Settings
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.environment.registry import UnknownEnvironment, build, traits
from learnloop_service.judges import registry as judges
from learnloop_service.judges.base import JudgeServices
from learnloop_service.training.backends.registry import engine_backend, is_on_engine, preflight
from learnloop_service.training.backends.traits import Check, State
from learnloop_service.training.bases.files import base_model_fault
from learnloop_service.training.bases.memory import MemoryNeed, memory_needed, usual_tuning_of
from learnloop_service.training.engine_libraries import missing_libraries
from learnloop_service.training.gpu_memory import free_gpu_memory
from learnloop_service.training.tuning import Tuning

GB = 1e9
_SPARE_DISK = 2 * GB
_TRAINED = {"full": "all weights", "lora": "a LoRA"}


def checks(settings: Settings, request: LearnLoopRequest) -> Iterator[Check]:
    """Check the machine and the settings for this run."""
    backend = request.backend or settings.backend
    base_model = request.model.base_model or settings.art_base_model
    yield _machine()
    yield (usable := _backend(settings, backend, base_model))
    if usable.state is State.OK:
        yield from preflight(backend)
    if is_on_engine(backend) and settings.engine_url is None:
        if (missing := missing_libraries()) is not None:
            yield Check("engine", State.FAILED, missing)
        yield from _base_model(settings, base_model, request.model.tuning.tuning() if request.model.tuning else None)
    yield _disk(settings, request)
    yield _database(settings)
    yield _judge(settings, request)


def _machine() -> Check:
    cores, memory = usable_cores(), psutil.virtual_memory()
    summary = f"Python {platform.python_version()}, {cores} cores, {memory.available / GB:.1f} GB of memory free"
    return Check("machine", State.OK, summary)


def _backend(settings: Settings, backend: str, base_model: str) -> Check:
    if (why := refusal(backend, base_model)) is not None:
        return Check("backend", State.FAILED, why, "set what it names, or another `backend` (docs/backends.md)")
    where = f", engine at {settings.engine_url}" if settings.engine_url and is_on_engine(backend) else ""
    return Check("backend", State.OK, f"{backend}{where}")


def _base_model(settings: Settings, name: str, tuning: Tuning | None) -> Iterator[Check]:
    if name == TINY_BASE:
        yield Check("base model", State.OK, f"{name}, which comes with Learnloop")
        return
    if "@" in name:
        yield Check("base model", State.OK, f"{name}, a checkpoint: the trial finds out whether it exists")
        return
    if (directory := settings.base_models.get(name)) is None:
        names = ", ".join([TINY_BASE, *settings.base_models])
        remedy = f"add it with `learnloop bases add NAME SOURCE`, or choose one of: {names}"
        yield Check("base model", State.FAILED, f"the engine does not have {name}", remedy)
        return
    if (fault := base_model_fault(directory)) is not None:
        yield Check("base model", State.FAILED, f"{directory}: {fault}", "copy the model's files again")
        return
    tuning = tuning or usual_tuning_of(directory)
    need = memory_needed(directory, tuning, settings.engine_device, settings.engine_training_weights)
    trained = f"{need.parameters / 1e9:.2f} billion parameters, {_TRAINED[tuning.mode]} trained"
    yield Check("base model", State.OK, f"{name}, {trained}")
    for finding in base_model_findings(settings, engine_backend(), name):
        yield Check(f"base model, {finding.name}", State.WARNING, finding.found, finding.remedy)
    yield _memory(settings.engine_device, need, tuning)


def _memory(device: str, need: MemoryNeed, tuning: Tuning) -> Check:
    if device == "cuda":
        if not (gpus := free_gpu_memory()):
            return Check("GPU", State.FAILED, "nvidia-smi finds no GPU", "install its driver")
        name, free = "GPU memory", max(gpus)
    else:
        name, free = "memory", float(psutil.virtual_memory().available)
    parts = (
        f"{need.training / GB:.1f} to train, {need.sampling / GB:.1f} to sample, {need.program / GB:.1f} for the rest"
    )
    summary = f"{free / GB:.1f} GB free, about {need.total / GB:.1f} GB needed ({parts})"
    if need.total <= 0.8 * free:
        return Check(name, State.OK, summary)
    lora = "train a LoRA (`--set model.tuning.mode=lora`), " if tuning.mode == "full" else ""
    remedy = f"{lora}choose a smaller base model, or free memory"
    return Check(name, State.FAILED if need.total > free else State.WARNING, summary, remedy)


def _disk(settings: Settings, request: LearnLoopRequest) -> Check:
    data_dir = settings.data_dir
    there = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        remedy = "set LEARNLOOP_DATA_DIR to a directory that can be written"
        return Check("disk", State.FAILED, f"{there} cannot be written: {error.strerror}", remedy)
    free = shutil.disk_usage(there).free
    summary = f"{free / GB:.1f} GB free for {data_dir}"
    plan = plan_with_defaults(request, settings)
    need = need_of(settings, plan, plan.model.base_model, plan.model.tuning)
    if need is not None and settings.engine_url is None:  # an engine elsewhere is asked when the run is posted
        summary += f", about {need.total / GB:.1f} GB needed ({need}, and rollouts in the database)"
        if need.total > free:
            return Check("disk", State.FAILED, summary, REMEDY)
    if free < _SPARE_DISK:
        return Check("disk", State.WARNING, summary, f"keep at least {_SPARE_DISK / GB:.0f} GB free")
    return Check("disk", State.OK, summary)


def _database(settings: Settings) -> Check:
    if settings.database_url is None:
        return Check("database", State.OK, "an embedded Postgres in the data directory")
    try:
        asyncio.run(connect_once(parse_url(settings.database_url.get_secret_value())))
    except (DatabaseUrlError, NoConnection) as error:
        return Check("database", State.FAILED, f"DATABASE_URL: {error}", "start it, or correct the address")
    return Check("database", State.OK, "the Postgres of DATABASE_URL takes connections")


def _judge(settings: Settings, request: LearnLoopRequest) -> Check:
    try:
        is_named = isinstance(request.judge, list) or (request.judge is not None and request.judge.name is not None)
        judge = judge_with_defaults(request.judge, "" if is_named else _default_judge(settings, request))
    except (UnknownEnvironment, PluginFault, InvalidRequest, ValueError) as error:
        return Check("judge", State.FAILED, f"the environment cannot be made: {error}", "correct `environment`")
    try:
        judges.build(judge.name, judge.config, JudgeServices(models=ListedModels(settings)))
    except (judges.UnknownJudge, PluginFault, ValueError) as error:
        return Check("judge", State.FAILED, str(error), "correct `judge`, or set what it names")
    return Check("judge", State.OK, judge.name)


def _default_judge(settings: Settings, request: LearnLoopRequest) -> str:
    """Return the name of the environment's own judge. Raises UnknownEnvironment, PluginFault, InvalidRequest, or
    ValueError for a bad config."""
    environment = plan_of(request, settings, "preflight").environment
    # Stored data, which only the service can look up, does not determine the judge.
    config = {
        name: value for name, value in environment.config.items() if name not in traits(environment.name).datasets
    }
    with (
        tempfile.TemporaryDirectory(prefix="learnloop-") as directory,
        closing(build(environment.name, config, Path(directory))) as built,
    ):
        return built.default_judge
