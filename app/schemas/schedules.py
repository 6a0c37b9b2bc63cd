"""Bodies of the requests and responses about schedules."""

from datetime import datetime

from pydantic import ConfigDict, Field, field_validator

from learnloop_service.app.domain.cron import check_cron
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.domain.schedule_state import DueReason, DueState, Then
from learnloop_service.app.schemas.base import Name, RequestBody, ResponseModel
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.environment.json_type import Json


class ScheduleRequest(RequestBody):
    """A learn-loop to start again and again, from what users asked since the last time."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "nightly",
                    "cron": "0 2 * * *",
                    "run": {
                        "environment": {"name": "agent", "config": {"runner": {"pull": {}}}},
                        "source": {"sessions": {"model": "mail/live", "feedback": "negative"}},
                        "iterations": 10,
                    },
                    "promoted_name": "live",
                    "then": "trial",
                }
            ]
        }
    )

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the schedule, unique within its project. The models that its runs train are named after it."""
    cron: str = Field(max_length=200)
    """When to start runs: minute, hour, day of the month, month and day of the week, in UTC."""
    run: LearnLoopRequest
    """The learn-loop, with `source.sessions`. Of its filter, `model` limits the tasks to what that name was asked,
    `limit` is the number of tasks to draw, and `rewarded`, `reward_below` and `feedback` select half of them.
    `model.base_model` is where runs start while nothing is promoted."""
    promoted_name: Name | None = None
    """Promoted name of the project whose checkpoint each run starts from. Default: the name in
    `run.source.sessions.model`."""
    then: Then = Then.TRIAL
    """What follows a completed run. `trial`: its best checkpoint is promoted to the name if a trial on held-out tasks
    shows that it is better than the one that has it. `release`: a release with the defaults of
    `POST /promotions/{project}/{name}/releases` gives it a share of the name's users. `nothing`: nothing."""
    least_new_tasks: int = Field(default=100, ge=3, le=1_000_000)
    """Number of consented tasks that must be new since the last run's draw; with fewer no run is started."""
    window_days: float | None = Field(default=None, gt=0, le=3_650)
    """Draw from the tasks of this many days before the due time. Null: from those since the last run's draw."""
    project: Name | None = None
    """Project of the schedule, its runs and its models. Default: that of the API key, else that of the service."""

    @field_validator("cron")
    @classmethod
    def _names_times(cls, cron: str) -> str:
        check_cron(cron)
        return cron

    @field_validator("run")
    @classmethod
    def _fits(cls, run: LearnLoopRequest) -> LearnLoopRequest:
        if run.source is None:
            raise ValueError("give source.sessions: a schedule learns from what users asked")
        if run.model.model_fields_set & {"name", "project"}:
            raise ValueError("leave out model.name and model.project: each run trains a new model of the schedule")
        if run.name is not None:
            raise ValueError("leave out name: each run of a schedule is called by its model")
        if run.webhooks:
            raise ValueError(
                "leave out webhooks, whose secrets would never be shown; create an endpoint of the project"
            )
        return run


class ScheduleRunOut(ResponseModel):
    """A due time of a schedule, and what came of it."""

    due_at: datetime
    """When it was due."""
    state: DueState
    """`running`: its run was started, and what follows it is still to come; `done`; `skipped`: no run was started."""
    reason: DueReason | None
    """Why it was skipped, or why nothing followed its run; null for neither."""
    detail: str | None
    """The reason as a sentence."""
    run_id: str | None
    """The run; null if there is none, or if it was deleted."""
    run_status: RunStatus | None
    """Status of the run."""
    started_from: str | None
    """The promoted checkpoint that the run started from, as `PROJECT/NAME@STEP`; null for its base model."""
    tasks: int | None
    """Number of tasks that were drawn; null if it was skipped."""
    users: int | None
    """Number of users who asked them."""
    evaluation_id: str | None
    """The trial of the run's best checkpoint."""
    evaluation_status: EvaluationStatus | None
    """Status of the trial."""
    decision: str | None
    """What the trial decided: `promote`, `refuse`, `undecided` or `overtaken`; null before that."""
    release_id: str | None
    """The release of the run's best checkpoint."""


class ScheduleOut(ResponseModel):
    """A schedule."""

    id: str
    """Id of the schedule."""
    project: str
    """Project that it belongs to."""
    name: str
    """Its name within the project."""
    cron: str
    """When runs start, in UTC."""
    run: dict[str, Json]
    """The learn-loop, as it was given."""
    promoted_name: str
    """The promoted name whose checkpoint each run starts from, as `PROJECT/NAME`."""
    then: Then
    """What follows a run that is completed: `trial`, `release` or `nothing`."""
    least_new_tasks: int
    """Number of new tasks below which no run is started."""
    window_days: float | None
    """Days before the due time from which tasks are drawn; null for the time since the last draw."""
    actor: str
    """Who created it."""
    created_at: datetime
    """When it was created."""
    paused: bool
    """Whether it is paused."""
    next_times: list[datetime]
    """The next three due times; none while paused."""
    trials: int
    """Number of trials so far."""
    expected_wrong_promotions: float
    """Number of wrong promotions to be expected by now, at most: the sum of the trials' error rates."""
    last: ScheduleRunOut | None
    """The latest due time that was noticed; null if there is none yet."""
