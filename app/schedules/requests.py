"""The learn-loops of schedules: checked when a schedule is created, and completed for each due time."""

from datetime import datetime
from typing import Any

from learnloop_service.app.agent_sessions.consented import SessionFilter, read_filter
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.tables import Promotion, Schedule
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.operations.own_agent_requests import OwnAgentRequests
from learnloop_service.app.operations.start.run_plan import plan_of
from learnloop_service.app.operations.start.served import answer_source
from learnloop_service.app.resources import Resources
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.schemas.schedules import ScheduleRequest
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.registry import engine_backend, is_on_engine
from learnloop_service.training.protocol.model_name import ModelName

_RUN = ("body", "run")


async def new_schedule(
    resources: Resources, request: ScheduleRequest, project: str, id: str, caller: Caller
) -> Schedule:
    """Return the schedule to store; a secret in it is encrypted. Raises InvalidRequest."""
    run = request.run
    if not is_on_engine(run.backend or resources.settings.backend):
        raise InvalidRequest(
            (*_RUN, "backend"), f"Runs of a schedule start from a checkpoint, which only {engine_backend()} can do."
        )
    try:
        answers = answer_source(run)
        plan_of(run.model_copy(update={"source": None if answers else run.source}), resources.settings, id)  # checks it
    except InvalidRequest as error:
        raise InvalidRequest((*_RUN, *error.loc[1:]), str(error)) from error
    which = answers or filter_of(run)
    name = request.promoted_name or (which.model or "").removeprefix(f"{project}/")
    if not name or ModelName(project, name).step is not None or "/" in name or "@" in name:
        raise InvalidRequest(
            ("body", "promoted_name"),
            f"Give the promoted name whose checkpoint runs start from: here, or as run.source.sessions.model "
            f"(such as {project}/live).",
        )
    return Schedule(
        id=id,
        project=project,
        name=request.name,
        cron=request.cron,
        run=run.model_dump(mode="json", exclude_unset=True) | await _sealed(resources, run, project),
        promoted_name=name,
        then=request.then,
        least_new_tasks=request.least_new_tasks,
        window_days=request.window_days,
        actor=caller.actor,
        started_by=caller.started_by,
    )


def filter_of(run: LearnLoopRequest) -> SessionFilter:
    """Return the filter of the tasks. Raises InvalidRequest."""
    assert run.source is not None
    return read_filter(SessionFilter, run.source.sessions, (*_RUN, "source", "sessions"))


def request_for(schedule: Schedule, due_at: datetime, champion: Promotion | None, scenarios: Json) -> LearnLoopRequest:
    """Return the learn-loop of a due time: a new model that starts from the champion, with its prompt unless the
    schedule has another one, on the drawn scenarios, if any."""
    fields: dict[str, Any] = dict(schedule.run)
    if scenarios is not None:
        environment = fields["environment"]
        config = {**environment["config"], "scenarios": scenarios}
        fields |= {"source": None, "environment": {**environment, "config": config}}
    model = fields.get("model", {}) | {"project": schedule.project, "name": f"{schedule.name}-{due_at:%Y%m%d-%H%M%S}"}
    if champion is not None:
        model["base_model"] = checkpoint_name(champion)
        fields.setdefault("prompt", champion.prompt_sha256)
    return LearnLoopRequest.model_validate({**fields, "model": model})


def checkpoint_name(promotion: Promotion) -> str:
    """Return the promoted checkpoint as PROJECT/NAME@STEP."""
    return str(ModelName(promotion.project, promotion.model_name, promotion.step))


async def _sealed(resources: Resources, run: LearnLoopRequest, project: str) -> dict[str, Json]:
    """Return the environment to store, if the run names one."""
    if "environment" not in run.model_fields_set:
        return {}
    own_agents = OwnAgentRequests(resources.database, resources.settings)
    environment = Choice(name=run.environment.name, config=run.environment.config)
    try:
        choice, _ = await own_agents.prepared(environment, project)
    except InvalidRequest as error:
        raise InvalidRequest((*_RUN, *error.loc[1:]), str(error)) from error
    return {"environment": {"name": choice.name, "config": choice.config}}
