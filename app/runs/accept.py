"""Takes a learn-loop request: checks what can be checked now, fills in the defaults, saves run and documents."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from ulid import ULID

from app import documents
from app.documents import NewDocument, UnknownDocument
from app.errors import InvalidRequest
from app.judging import judge_model
from app.models import Run
from app.runs.configuration import make_environment, make_judge
from app.runs.defaults import judge_with_defaults, with_defaults
from app.runs.state import RunStatus
from app.schemas import LearnLoopRequest
from app.service import Service
from app.settings import TINY_BASE, Settings
from environment.registry import UnknownEnvironment
from judges.base import JudgeServices
from judges.registry import UnknownJudge
from training.backends import registry

_Place = tuple[str | int, ...]


async def accept(service: Service, request: LearnLoopRequest, reply: Callable[[Run], BaseModel], actor: str) -> Run:
    """The queued run; `reply` makes what its sender, `actor`, is told. Raises InvalidRequest or ModelBusy."""
    settings = service.settings
    run_id = str(ULID())
    given = with_defaults(request, settings, run_id)
    _check_backend(given, settings)
    whole = await _whole(service, request, given)
    complete, new = await asyncio.to_thread(_checked, request, given, whole, settings)
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
    await service.store.create(run, new, reply=reply(run), actor=actor)
    service.runner.wake()
    return run


def _check_backend(complete: Mapping[str, Any], settings: Settings) -> None:
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


async def _whole(service: Service, request: LearnLoopRequest, given: Mapping[str, Any]) -> dict[str, Any]:
    """The request with the stored documents that it refers to."""
    try:
        return await documents.put_back(service.sessions, given)
    except UnknownDocument as error:
        short = error.kind == "graph" and request.graph is not None
        place = ("body", "graph") if short else ("body", "environment", "config", error.kind)
        raise InvalidRequest(place, str(error)) from error


def _checked(
    request: LearnLoopRequest, given: Mapping[str, Any], whole: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, Any], list[NewDocument]]:
    """The request as it is stored, and what is stored beside it.

    Builds what the run will build, and draws one scenario: a bad choice is told now, not when the run starts.
    """
    short = request.graph is not None and not request.environment.config
    config = ("body", "graph") if short else ("body", "environment", "config")
    with _told(("body", "environment", "name"), UnknownEnvironment), _told(config, ValueError):
        made = make_environment(whole, settings.data_dir)
        try:
            made.scenarios("train", 1, given["seed"])
        finally:
            made.close()
        stored, new = documents.take_out(given, whole)
    judge = judge_with_defaults(request.judge, made.default_judge)
    _check_judges(request, judge, JudgeServices(rubric=made.rubric, model=judge_model(settings)))
    return {**stored, "judge": judge}, new


def _check_judges(request: LearnLoopRequest, judge: Mapping[str, Any], services: JudgeServices) -> None:
    where = ("body", "judge")
    if not isinstance(request.judge, list):
        _check_judge(judge, services, where)
        return
    for number, part in enumerate(judge["config"]["judges"]):
        _check_judge(part, services, (*where, number))
    with _told(where, ValueError):
        make_judge({"judge": judge}, services)


def _check_judge(judge: Mapping[str, Any], services: JudgeServices, where: _Place) -> None:
    with _told((*where, "name"), UnknownJudge), _told((*where, "config"), ValueError):
        make_judge({"judge": judge}, services)


@contextmanager
def _told(loc: _Place, error: type[Exception]) -> Iterator[None]:
    """Tell an error of that kind as the fault of the field at `loc`."""
    try:
        yield
    except error as told:
        raise InvalidRequest(loc, str(told)) from told
