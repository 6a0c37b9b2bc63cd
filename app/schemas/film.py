"""Bodies of the response about a run's held-out scenarios over its checkpoints."""

from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.trajectories import Mode, Split
from learnloop_service.app.statistics.trends import Trend
from learnloop_service.environment.json_type import Json


class FilmCheckpoint(ResponseModel):
    """A checkpoint that was evaluated."""

    iteration: int
    """Iteration after which it was evaluated; 0 is the baseline."""
    step: int
    """Step of the checkpoint."""
    success: float
    """Share of its rollouts on all scenarios that did their task, from 0 to 1."""
    is_kept: bool
    """Whether its weights are still there."""


class FilmScenario(ResponseModel):
    """A held-out scenario. The lists have one value for each of the checkpoints."""

    scenario_id: str
    """Id of the scenario."""
    task: dict[str, Json]
    """What the agent was given, with long values cut."""
    expected: str | None
    """The answer that is expected, with a long one cut; null if the scenario has none."""
    trend: Trend
    """`known`: all its rollouts were right at the first and at the last checkpoint. `learned`: all are right at the
    last one, and were not at the first. `lost`: all were right in between. `changed`: some other change that is no
    loss. `got_worse`: fewer are right than at the first checkpoint. `never`: none was ever right."""
    learned_at: int | None
    """Iteration of the first checkpoint from which on all rollouts were right; null if they are not at the last one."""
    right: list[int]
    """Number of rollouts that did the task."""
    rollouts: list[int]
    """Number of rollouts; 0 where the scenario was not evaluated."""


class BehaviourOut(ResponseModel):
    """Something that the agent does more, or less, often than before."""

    what: str
    """The behaviour in words, such as "the first call is `search_inbox` with at least 2 values in `keywords`"."""
    before: float
    """Share of the rollouts of the first checkpoint, from 0 to 1."""
    after: float
    """Share of the rollouts of the last checkpoint."""
    points: IntervalOut
    """The change in percentage points, paired by scenario."""


class FilmOut(ResponseModel):
    """A run's held-out scenarios by its evaluated checkpoints."""

    run_id: str
    """Id of the run."""
    split: Split
    """Split of the scenarios."""
    mode: Mode
    """How the tokens of the rollouts were picked."""
    checkpoints_total: int
    """Number of checkpoints that were evaluated."""
    checkpoints: list[FilmCheckpoint]
    """Up to 24 of them in order: the first, the last, and those between, evenly spread."""
    scenarios_total: int
    """Number of scenarios that were evaluated."""
    scenarios: list[FilmScenario]
    """Up to 200 of them, sorted by trend and by when they were learned."""
    behaviours: list[BehaviourOut]
    """Up to five behaviours whose share changed most between the first and the last checkpoint, the largest change
    first. Changes that chance could explain are left out."""
    behaviours_compared: int
    """Number of behaviours that were compared."""
