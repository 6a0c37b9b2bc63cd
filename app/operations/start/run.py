"""Starts a run: checks the request as far as possible, fills in defaults, saves the run and its documents."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import structlog
from sqlalchemy import ScalarSelect, insert
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.agent_sessions.served import FrozenAnswers
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.claims.day_budget import usd_of_day
from learnloop_service.app.datasets import documents
from learnloop_service.app.datasets.documents import NewDocument
from learnloop_service.app.db.tables import Reflection, Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.errors import InvalidRequest, Unavailable
from learnloop_service.app.events.log import append
from learnloop_service.app.operations.named import pinned
from learnloop_service.app.operations.start.backend_checks import engine_for, reached
from learnloop_service.app.operations.start.base_model import Root, root_of
from learnloop_service.app.operations.start.evaluation import check_new_budget
from learnloop_service.app.operations.start.run_disk import REMEDY, need_of, why_too_little
from learnloop_service.app.operations.start.run_names import usual_name
from learnloop_service.app.operations.start.run_plan import RunPlan, plan_of
from learnloop_service.app.operations.start.served import with_answers
from learnloop_service.app.operations.start.validation import validated
from learnloop_service.app.operations.start.warm_start import with_warm_start
from learnloop_service.app.runs.expected_work import WorkForecast, expected_work
from learnloop_service.app.runs.resume_point import INHERITED
from learnloop_service.app.runs.stored_prompts import pinned_prompt
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.app.webhooks.endpoints import NewEndpoint
from learnloop_service.training.backends.base import StoringBackend
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.bases.defaults import Default, usual_rate
from learnloop_service.training.disk_need import DiskNeed

log = structlog.get_logger(__name__)

SaveReply = Callable[[AsyncSession, "Started"], Awaitable[None]]
"""Saves the reply to the request in the caller's transaction, given the run without its endpoints."""


@dataclass(frozen=True, slots=True)
class Started:
    """Webhook endpoints, warnings, defaults and expected work of a run that was queued."""

    endpoints: Sequence[NewEndpoint]
    warnings: Sequence[str]
    defaults: Mapping[str, Default]
    expected: WorkForecast
    answers: FrozenAnswers | None = None
    """The served answers that it learns from."""


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """The run and the step that a run is forked from."""

    run_id: str
    step: int
    learned: Reflection | None
    """What the parent's environment had learned by that step."""
    first_scenario: int = 0
    """Number of the first training scenario that the parent rolled out."""


async def start_run(
    service: HandlerResources,
    run_id: str,
    request: LearnLoopRequest,
    caller: Caller,
    save_reply: SaveReply,
    parent: ForkOrigin | None = None,
) -> Started:
    """Queue the run.

    `save_reply` is called in the transaction that creates the run, so that either both are saved or neither. Raises
    InvalidRequest, ModelBusy, or Unavailable if the request cannot be checked because the engine is unavailable.
    """
    new, run, started = await planned_run(service, run_id, request, caller, parent)
    answers, endpoints = started.answers, list[NewEndpoint]()

    async def also(tx: AsyncSession) -> None:
        endpoints.extend(await service.webhooks.attach(tx, run_id, run.model_project, request.webhooks))
        await tx.flush()  # the first event is sent to these endpoints as well
        if parent is not None:
            await _save_fork(tx, run_id, parent, caller.actor)
        if answers is not None and answers.document is not None:
            await documents.save_of_users(tx, answers.document, answers.users)
        await save_reply(tx, started)

    await service.store.create(run, new, also=also, actor=caller.actor)
    service.runner.wake()
    return replace(started, endpoints=endpoints)


async def planned_run(
    service: HandlerResources, run_id: str, request: LearnLoopRequest, caller: Caller, parent: ForkOrigin | None = None
) -> tuple[list[NewDocument], Run, Started]:
    """Return the run that a request would queue, with the documents to store and what is said of it. Raises as
    `start_run` does."""
    request, answers = await with_answers(service, request)
    plan = replace(plan_of(request, service.settings, run_id), first_scenario=parent.first_scenario if parent else 0)
    engine = await engine_for(service, plan)
    root = await root_of(service, plan)
    await service.webhooks.check(request.webhooks)
    environment, notes = await pinned(service.database, service.settings, plan.environment, plan.model.project)
    database, data_dir, project = service.database, service.settings.data_dir, plan.model.project
    prompt = await pinned_prompt(database, data_dir, request.prompt, project, ("body", "prompt"))
    if answers is not None:
        notes = [f"Learns from {answers.note}", *notes]
        plan = replace(plan, served=answers.facts)
    plan = replace(plan, environment=environment, warnings=tuple(notes), prompt=prompt)
    if request.warm_start is not None:
        plan = await with_warm_start(service, plan, request.warm_start)
    plan, new = await validated(service, plan, root, parent.learned.state if parent and parent.learned else None)
    assert plan.judge is not None
    try:
        check_new_budget({"max_usd": 0.0}, plan.judge, (), service.settings)
    except InvalidRequest:  # it matters only if there is a budget for the day
        if await usd_of_day(service.database, project, caller.started_by) is not None:
            raise
    run = _new_run(plan, engine, parent, caller)
    run.name = request.name or usual_name(request, plan, service.settings)
    expected = await expected_work(service.database, run)
    if (need := await _fitting(service, plan, root)) is not None:
        expected = replace(expected, disk_bytes=need.total)
    return new, run, Started([], plan.warnings, plan.defaults, expected, answers)


async def _fitting(service: HandlerResources, plan: RunPlan, root: Root) -> DiskNeed | None:
    """Return how much disk the run takes; None if that is unknown. Raises InvalidRequest if it does not fit."""
    settings = service.settings
    if not is_on_engine(plan.backend):
        return None
    need = await asyncio.to_thread(need_of, settings, plan, root.base_model, root.tuning)
    if need is None:
        return None
    why = why_too_little(settings, need, await _free_on_engine(service, plan))
    if why is not None:
        raise InvalidRequest(("body", "checkpoints"), f"{why} {REMEDY}")
    return need


async def _free_on_engine(service: HandlerResources, plan: RunPlan) -> int | None:
    """Return how many bytes are free on the engine's disk; None if it cannot be asked now."""
    try:
        async with reached(service, plan.backend, plan.model_name) as backend:
            return await backend.free_bytes() if isinstance(backend, StoringBackend) else None
    except Unavailable as error:
        log.warning("free disk not asked", run_id=plan.run_id, error=str(error))
        return None


def _new_run(
    plan: RunPlan, engine: str | ScalarSelect[str | None] | None, parent: ForkOrigin | None, caller: Caller
) -> Run:
    assert plan.judge is not None
    assert plan.base is not None
    return Run(
        id=plan.run_id,
        started_by=caller.started_by,
        status=RunStatus.QUEUED,
        request=plan.stored(),
        environment=plan.environment.name,
        judge=plan.judge.name,
        backend=plan.backend,
        engine=engine,
        model_project=plan.model.project,
        model_name=plan.model.name,
        base_model=plan.model.base_model,
        iterations_total=plan.iterations_total,
        warnings=list(plan.warnings),
        defaults={path: asdict(default) for path, default in plan.defaults.items()},
        usual_learning_rate=usual_rate(plan.base) if plan.base.is_sized else None,
        parent_run_id=parent.run_id if parent else None,
        parent_step=parent.step if parent else None,
    )


async def _save_fork(tx: AsyncSession, run_id: str, parent: ForkOrigin, actor: str) -> None:
    """Record the fork in the parent's log, and copy the environment's state, because the parent can be deleted."""
    data = {"run_id": run_id, "step": parent.step}
    await append(tx, parent.run_id, EventType.RUN_FORKED, actor, data)
    if parent.learned is not None:
        row = {"state": parent.learned.state, "trajectory_id": parent.learned.trajectory_id}
        await tx.execute(insert(Reflection), [{"run_id": run_id, "iteration": INHERITED, **row}])
