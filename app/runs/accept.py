"""Takes a learn-loop request: checks what can be checked now, fills in the defaults, saves the run."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ulid import ULID

from app.errors import InvalidRequest
from app.judging import judge_model
from app.models import Run
from app.runs.configuration import make_environment, make_judge
from app.runs.state import RunStatus
from app.schemas import LearnLoopRequest
from app.service import Service
from app.settings import TINY_BASE, Settings
from environment.registry import UnknownEnvironment
from judges.base import JudgeServices
from judges.registry import UnknownJudge
from training.backends import registry


async def accept(service: Service, request: LearnLoopRequest) -> Run:
    """The queued run. Raises InvalidRequest or ModelBusy."""
    settings = service.settings
    run_id = str(ULID())
    complete = _with_defaults(request, settings, run_id)
    _check_backend(complete, settings)
    await asyncio.to_thread(_check_choices, complete, settings)
    model = complete["model"]
    run = Run(
        id=run_id,
        status=RunStatus.QUEUED,
        request=complete,
        environment=complete["environment"]["name"],
        judge=complete["judge"]["name"],
        backend=complete["backend"],
        model_project=model["project"],
        model_name=model["name"],
        base_model=model["base_model"],
        iterations_total=complete["iterations"],
    )
    await service.store.create(run)
    service.runner.wake()
    return run


def _with_defaults(request: LearnLoopRequest, settings: Settings, run_id: str) -> dict[str, Any]:
    complete = request.model_dump()
    complete["backend"] = request.backend or settings.backend
    complete["model"] = {
        "name": request.model.name or settings.art_model_name or f"run-{run_id.lower()}",
        "project": request.model.project or settings.art_project,
        "base_model": request.model.base_model or settings.art_base_model,
    }
    return complete


def _check_backend(complete: dict[str, Any], settings: Settings) -> None:
    backend, base_model = complete["backend"], complete["model"]["base_model"]
    if backend not in registry.names():
        known = ", ".join(registry.names())
        raise InvalidRequest(("body", "backend"), f"no backend named {backend!r}; there are: {known}")
    bases = {TINY_BASE, *settings.engine_base_models}
    if backend == "embedded" and base_model not in bases:
        raise InvalidRequest(
            ("body", "model", "base_model"),
            f"the engine has no base model {base_model!r}; it has: {', '.join(sorted(bases))}",
        )


def _check_choices(complete: dict[str, Any], settings: Settings) -> None:
    """Build what the run will build, and draw one scenario: a bad choice is told now, not when the run starts."""
    with _told(("body", "judge", "name"), UnknownJudge), _told(("body", "judge", "config"), ValueError):
        make_judge(complete, JudgeServices(model=judge_model(settings)))
    where = ("body", "environment")
    with _told((*where, "name"), UnknownEnvironment), _told((*where, "config"), ValueError):
        made = make_environment(complete, settings.data_dir)
        try:
            made.scenarios("train", 1, complete["seed"])
        finally:
            made.close()


@contextmanager
def _told(loc: tuple[str, ...], error: type[Exception]) -> Iterator[None]:
    """Tell an error of that kind as the fault of the field at `loc`."""
    try:
        yield
    except error as told:
        raise InvalidRequest(loc, str(told)) from told
