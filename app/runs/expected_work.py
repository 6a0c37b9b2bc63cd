"""How many rollouts a run makes, and about how long it takes."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import LedgerEntry, Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.runs.cost import COST
from learnloop_service.environment.json_type import Json


@dataclass(frozen=True, slots=True)
class RolloutForecast:
    """Numbers of rollouts in a run."""

    baseline: int
    """Before training, on held-out scenarios, at most."""
    training: int
    evaluations: int
    """After the baseline, on held-out scenarios."""
    replacements: int = 0
    """In groups that replace those that teach nothing, at most."""

    @property
    def total(self) -> int:
        """All rollouts of the run but replacements."""
        return self.baseline + self.training + self.evaluations

    @property
    def most(self) -> int:
        """All rollouts of the run, at most."""
        return self.total + self.replacements


@dataclass(frozen=True, slots=True)
class WorkForecast:
    """The rollouts of a run, and the time and money that they take."""

    rollouts: RolloutForecast
    seconds: float | None
    """By the newest comparable run; None if there is none."""
    usd: float | None = None
    """By the same run; None if there is none, or no price is known."""
    disk_bytes: float | None = None
    """What its checkpoints and rollouts take; None if that is unknown."""


def expected_rollouts(request: Mapping[str, Json], iterations: int) -> RolloutForecast:
    """Return the rollouts of a run with this whole request and this number of iterations of GRPO."""
    held_out = request["evaluation"]
    rollouts_per_scenario = held_out["samples"] + 1  # plus a greedy one
    numbers = range(
        0 if request.get("warm_start") or request.get("served") else 1, iterations + 1
    )  # 0: without rollouts
    evaluations = sum(number % held_out["every"] == 0 or number == iterations for number in numbers)
    training = iterations * request["groups_per_iteration"] * request["rollouts_per_group"]
    return RolloutForecast(
        baseline=rollouts_per_scenario * (held_out["scenarios"] + held_out["test_scenarios"]),
        training=training,
        evaluations=rollouts_per_scenario * (evaluations * held_out["scenarios"] + held_out["test_scenarios"]),
        replacements=training if request.get("replace_groups") else 0,
    )


async def expected_work(database: Database, run: Run) -> WorkForecast:
    """Return what a run that is about to be queued will do. Its time and price are those of the newest completed run of
    the same project with the same base model, environment and backend, per rollout."""
    rollouts = expected_rollouts(run.request, run.request["iterations"])
    same = (Run.model_project, Run.base_model, Run.environment, Run.backend)
    newest = (
        select(Run.id, Run.rollouts, COST.label("usd"))
        .where(Run.status == RunStatus.COMPLETED, Run.rollouts > 0)
        .where(*(column == getattr(run, column.key) for column in same))
        .order_by(Run.id.desc())
        .limit(1)
        .subquery()
    )
    took = (
        select(newest.c.rollouts, func.sum(LedgerEntry.seconds), newest.c.usd)
        .join(LedgerEntry, LedgerEntry.run_id == newest.c.id)
        .group_by(newest.c.rollouts, newest.c.usd)
    )
    async with database() as tx:
        newest_run = (await tx.execute(took)).one_or_none()
    if newest_run is None:
        return WorkForecast(rollouts, None)
    made, seconds, usd = newest_run
    return WorkForecast(rollouts, rollouts.total * seconds / made, None if usd is None else rollouts.total * usd / made)
