"""Bodies of the responses about the patterns of failures."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.trajectories import Mode, Split

_Named = Annotated[str, Field(max_length=400, pattern=r"^[^\x00]+$")]
_Number = Annotated[int, Field(ge=0, lt=2**31)]


class FailureQuestion(BaseModel):
    """Which rollouts are asked about: those of an evaluation's model, or of a run's iteration."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    evaluation: _Named | None = None
    """Id of the evaluation that is asked about"""
    model: _Named | None = None
    """Label of its model. Default: the last one"""
    run: _Named | None = None
    """Id of the run that is asked about"""
    iteration: _Number | None = None
    """Iteration of the run. Default: the newest with such rollouts"""
    split: Split | None = None
    """Split of the run's rollouts. Default: validation, else test, else train"""
    mode: Mode | None = None
    """Mode of the run's rollouts. Default: sampled, else greedy"""
    before: _Named | None = None
    """Id of an evaluation, or an iteration of the run, to compare with. Default: the first model of the evaluation, or
    the first evaluation of the run"""


class TaskShareOut(IntervalOut):
    """A number of tasks, and their share of all tasks that are counted, with Wilson's interval."""

    tasks: int
    """Number of tasks."""


class FailedRolloutOut(ResponseModel):
    """A rollout behind a pattern."""

    trajectory_id: str
    """Id of its trajectory."""
    scenario_id: str
    """Id of the scenario."""
    why: str | None
    """Why it failed or was not a success, in a clause; null if the environment does not say."""
    reason: str | None
    """The judge's reason for its score; null without one."""


class BecameOut(ResponseModel):
    """What tasks of a pattern became."""

    pattern: str | None
    """Id of the pattern that they have now; null if they are solved."""
    tasks: int
    """Number of tasks."""


class FailurePatternOut(ResponseModel):
    """A kind of failure."""

    id: str
    """Such as `wrong_answer/read_source`: how rollouts ended, and what they missed. The rest of an ending has
    `/others`."""
    sentence: str
    """The pattern in words."""
    now: TaskShareOut
    """Tasks that have the pattern."""
    before: TaskShareOut | None
    """Tasks that had it before; null without an earlier side."""
    became: list[BecameOut]
    """What the tasks became that had it before, largest number first."""
    rollouts: list[FailedRolloutOut]
    """Rollouts that have the pattern, or had it if none has it now, by scenario, at most 10."""


class LostTaskOut(ResponseModel):
    """A task that was solved before and fails now."""

    scenario_id: str
    """Id of the scenario."""
    pattern: str
    """Id of the pattern that it has now."""
    trajectory_id: str
    """A rollout with that pattern."""
    before_trajectory_id: str
    """A rollout that solved it before."""


class FailureSideOut(ResponseModel):
    """Rollouts whose failures are counted: of a model in an evaluation, or of a run's iteration."""

    name: str
    """The model's label, or `iteration 4`."""
    source: str
    """The evaluation or the run that has them, in words."""
    tasks: int
    """Number of tasks that are counted: with an earlier side, those that both have."""
    left_out: int
    """Number of its other tasks."""
    solved: TaskShareOut
    """Tasks that more than half of their rollouts solve."""


class FailureMap(ResponseModel):
    """The tasks that fail, by pattern. A task counts for the commonest pattern of its failing rollouts."""

    now: FailureSideOut
    """The rollouts that are asked about."""
    before: FailureSideOut | None
    """The rollouts that they are compared with; null without any."""
    patterns: list[FailurePatternOut]
    """The patterns, most tasks on both sides first: at most 12, and one more for the rest of each ending."""
    lost_tasks: int
    """Number of tasks that were solved before and fail now."""
    lost: list[LostTaskOut]
    """These tasks, in the order of their scenarios, at most 200."""
