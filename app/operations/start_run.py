"""Takes a learn-loop request: checks what can be checked now, fills in the defaults, saves run and documents."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from app.backends import refusal
from app.db.session import Sessions
from app.db.tables import Reflection, Run
from app.domain.event_types import EventType
from app.domain.names import TINY_BASE
from app.domain.run_state import RunStatus
from app.domain.stored_request import Choice
from app.errors import InvalidRequest, Unavailable
from app.events.log import append
from app.http import idempotency
from app.operations.run_defaults import judge_with_defaults, with_defaults
from app.processes.engine import EngineUnavailable
from app.runs import documents
from app.runs.configuration import make_environment, make_judge
from app.runs.documents import NewDocument, UnknownDocument
from app.runs.resume_point import INHERITED, begin_with
from app.schemas.runs import LearnLoopRequest
from app.service import Service
from app.settings import Settings
from app.webhooks.endpoints import NewEndpoint
from app.worker.judge_services import judge_model
from environment.registry import UnknownEnvironment
from judges.base import JudgeServices
from judges.registry import UnknownJudge
from training.backends.base import BackendUnavailable
from training.backends.embedded import NAME as EMBEDDED
from training.model_name import ModelName

_Place = tuple[str | int, ...]


Reply = TypeVar("Reply", bound=BaseModel)
MakeReply = Callable[[Run, Sequence[NewEndpoint]], Reply]
"""Makes what its sender is told of a new run, with the endpoints that the request gave it."""


@dataclass(frozen=True, slots=True)
class Parent:
    """What a run is forked from."""

    run_id: str
    step: int
    learned: Reflection | None
    """What the parent's environment had learned beside that step."""


async def accept(
    service: Service, request: LearnLoopRequest, reply: MakeReply[Reply], actor: str, parent: Parent | None = None
) -> Reply:
    """Queue the run; `reply` makes what its sender, `actor`, is told.

    Raises InvalidRequest, ModelBusy, or Unavailable if the engine is needed to check the request and is away.
    """
    settings = service.settings
    run_id = str(ULID())
    given = with_defaults(request, settings, run_id)
    engine = await _check_backend(service, given)
    await service.webhooks.check(request.webhooks)
    environment = await _resolved(service.sessions, request, given)
    state = parent.learned.state if parent and parent.learned else None
    complete, new = await asyncio.to_thread(_checked, request, given, environment, settings, state)
    model = complete["model"]
    run = Run(
        id=run_id,
        status=RunStatus.QUEUED,
        request=complete,
        environment=complete["environment"]["name"],
        judge=complete["judge"]["name"],
        backend=complete["backend"],
        engine=engine,
        model_project=model["project"],
        model_name=model["name"],
        base_model=model["base_model"],
        iterations_total=complete["iterations"],
        parent_run_id=parent.run_id if parent else None,
        parent_step=parent.step if parent else None,
    )
    told: list[Reply] = []

    async def beside(session: AsyncSession) -> None:
        endpoints = await service.webhooks.attach(session, run_id, run.model_project, request.webhooks)
        await session.flush()  # the first event is for them already
        if parent is not None:
            await _save_descent(session, run_id, parent, actor)
        told.append(reply(run, endpoints))
        await idempotency.complete(session, 202, told[0], has_secret=bool(endpoints))

    await service.store.create(run, new, also=beside, actor=actor)
    service.runner.wake()
    return told[0]


async def _save_descent(session: AsyncSession, run_id: str, parent: Parent, actor: str) -> None:
    """The parent's log tells of the fork; what its environment had learned is kept as the fork's own, for a parent
    may be deleted."""
    data = {"run_id": run_id, "step": parent.step}
    await append(session, parent.run_id, EventType.RUN_FORKED, actor, data)
    if parent.learned is not None:
        row = {"state": parent.learned.state, "trajectory_id": parent.learned.trajectory_id}
        await session.execute(insert(Reflection), [{"run_id": run_id, "iteration": INHERITED, **row}])


async def _check_backend(service: Service, complete: Mapping[str, Any]) -> str | None:
    """The engine that the run must be driven on, None for any. Raises InvalidRequest, Unavailable."""
    backend, model = complete["backend"], complete["model"]
    if (refused := refusal(service.settings, backend, model["base_model"])) is not None:
        raise InvalidRequest(("body", "backend"), refused)
    if backend != EMBEDDED:
        return None  # it has its own base models; what it does not have is told when the run starts
    base_model, bases = model["base_model"], {TINY_BASE, *service.settings.engine_base_models}
    if base_model in bases:
        return await service.queries.engine_of(backend, model["project"], model["name"])
    source = _checkpoint(base_model)
    if source is not None and source.project == model["project"]:
        engine = await service.queries.engine_of(backend, source.project, source.name)
        if source.step in await _checkpoints(service, backend, engine, source):
            return engine
    raise InvalidRequest(
        ("body", "model", "base_model"),
        f"Unknown base model {base_model!r}. Available: {', '.join(sorted(bases))}, "
        f"and checkpoints of project {model['project']} as PROJECT/NAME@STEP.",
    )


def _checkpoint(base_model: str) -> ModelName | None:
    try:
        return ModelName.parse(base_model)
    except ValueError:
        return None


async def _checkpoints(service: Service, backend: str, engine: str | None, model: ModelName) -> frozenset[int] | range:
    """The steps of a model that a run can go on from. What we cannot ask is told when the run starts."""
    if not service.reaches(engine):
        return range(2**31)
    try:
        connected = await service.connect(backend)
        try:
            return await connected.checkpoints(model.project, model.name)
        finally:
            await connected.close()
    except (EngineUnavailable, BackendUnavailable) as error:
        raise Unavailable(f"The base model cannot be checked now: {error}") from error


async def _resolved(sessions: Sessions, request: LearnLoopRequest, given: Mapping[str, Any]) -> Choice:
    """The environment with the stored documents that it refers to."""
    try:
        return await documents.resolve_references(sessions, Choice(**given["environment"]), given["model"]["project"])
    except UnknownDocument as error:
        short = error.kind == "graph" and request.graph is not None
        place = ("body", "graph") if short else ("body", "environment", "config", error.kind)
        raise InvalidRequest(place, str(error)) from error


def _checked(
    request: LearnLoopRequest,
    given: Mapping[str, Any],
    environment: Choice,
    settings: Settings,
    state: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], list[NewDocument]]:
    """The request as it is stored, and what is stored beside it.

    Builds what the run will build, restores `state` and draws one scenario: a bad choice is told now, not when the run
    starts.
    """
    short = request.graph is not None and not request.environment.config
    config = ("body", "graph") if short else ("body", "environment", "config")
    with _told(("body", "environment", "name"), UnknownEnvironment), _told(config, ValueError):
        made = make_environment(environment, settings.data_dir)
        try:
            begin_with(made, state)
            made.scenarios("train", 1, given["seed"])
        finally:
            made.close()
        stored, new = documents.extract_documents(
            Choice(**given["environment"]), environment, given["model"]["project"]
        )
    judge = judge_with_defaults(request.judge, made.default_judge)
    _check_judges(request, judge, JudgeServices(rubric=made.rubric, model=judge_model(settings)))
    return {**given, "environment": stored.model_dump(), "judge": judge}, new


def _check_judges(request: LearnLoopRequest, judge: Mapping[str, Any], services: JudgeServices) -> None:
    where = ("body", "judge")
    if not isinstance(request.judge, list):
        _check_judge(judge, services, where)
        return
    for number, part in enumerate(judge["config"]["judges"]):
        _check_judge(part, services, (*where, number))
    with _told(where, ValueError):
        make_judge(Choice(name=judge["name"], config=judge["config"]), services)


def _check_judge(judge: Mapping[str, Any], services: JudgeServices, where: _Place) -> None:
    with _told((*where, "name"), UnknownJudge), _told((*where, "config"), ValueError):
        make_judge(Choice(name=judge["name"], config=judge["config"]), services)


@contextmanager
def _told(loc: _Place, error: type[Exception]) -> Iterator[None]:
    """Tell an error of that kind as the fault of the field at `loc`."""
    try:
        yield
    except error as told:
        raise InvalidRequest(loc, str(told)) from told
