"""Bodies of the responses that compare two runs."""

from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.app.schemas.trajectories import Mode, Split
from learnloop_service.environment.json_type import Json


class SideOut(ResponseModel):
    """One of the two runs on a scenario."""

    success: float
    """Share of its rollouts that did the task, from 0 to 1."""
    trajectory_id: str
    """A rollout that succeeded, of the run that is better; one that failed, of the other."""


class DecidedScenarioOut(ResponseModel):
    """A scenario on which one run succeeds more often than the other."""

    scenario_id: str
    """Id of the scenario."""
    scenario: dict[str, Json]
    """The scenario: `task` is what the agent was given, `reference` what only judge and reward see."""
    run: SideOut
    """This run."""
    other: SideOut
    """The other run."""


class RunDifference(ResponseModel):
    """The other run's success minus this one's, as shares from -1 to 1, over the scenarios that both have."""

    scenarios: int
    """Number of scenarios."""
    changed: int
    """Number of scenarios whose success differs."""
    mean: float
    """Mean difference."""
    low: float
    """Lower end of the 95% interval, by the paired bootstrap over scenarios."""
    high: float
    """Upper end of the interval."""
    is_shown: bool
    """Whether chance is an unlikely explanation."""


class ComparedKindOut(ResponseModel):
    """The newest evaluations of one kind by both runs."""

    split: Split
    """Split of the scenarios."""
    mode: Mode
    """How tokens were picked."""
    run_iteration: int
    """Iteration after which this run was evaluated."""
    other_iteration: int
    """Iteration after which the other run was evaluated."""
    difference: RunDifference | None
    """How far they differ; null if they have no scenario in common."""
    run_better: int
    """Number of scenarios on which this run succeeds more often."""
    other_better: int
    """Number of scenarios on which the other run succeeds more often."""
    run_wins: list[DecidedScenarioOut]
    """The scenarios on which this run succeeds more often, largest difference first, at most 200."""
    other_wins: list[DecidedScenarioOut]
    """The scenarios on which the other run succeeds more often, likewise."""


class RunComparison(ResponseModel):
    """What two runs answer, on held-out scenarios."""

    run_id: str
    """Id of this run."""
    other_id: str
    """Id of the other run."""
    run_held_out_seed: int
    """Seed of this run's held-out scenarios. If the other's differs, the environment can have given it others."""
    other_held_out_seed: int
    """Seed of the other run's held-out scenarios."""
    held_out: list[ComparedKindOut]
    """One entry for each kind of evaluation that both have; sampled validation comes first."""
