"""Says which judges can score the rollouts of a run at all, by some of them, or by what they begin with."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

import judges.registry
from app.db.database import Database
from app.db.tables import Trajectory
from app.domain.stored_request import Choice
from app.runs.configuration import make_judge
from app.runs.stored_rollouts import scenario_of
from environment.base import REPORTED_REWARD, Environment, Outcome, Scenario
from environment.plugins import PluginFault
from judges.base import Judge, JudgeServices, Models, lacking

_MOST_EXAMINED = 20

Examined = Sequence[tuple[Scenario, Outcome]]
"""Scenarios, and the outcomes of rollouts."""


async def examined(database: Database, run_id: str) -> Examined:
    """Return the first rollouts of the run that finished."""
    columns = (Trajectory.scenario_id, Trajectory.split, Trajectory.scenario, Trajectory.outcome)
    query = select(*columns).where(Trajectory.run_id == run_id, Trajectory.error.is_(None))
    async with database() as tx:
        rows = (await tx.execute(query.order_by(Trajectory.seq).limit(_MOST_EXAMINED))).all()
    return [(scenario_of(row), row.outcome) for row in rows]


def unattempted(environment: Environment, seed: int) -> Examined:
    """Return training scenarios with the outcomes that their rollouts begin with; none if rollouts report rewards."""
    scenarios = environment.scenarios("train", _MOST_EXAMINED, seed)
    outcomes = [environment.episode(scenario).outcome() for scenario in scenarios]
    are_reported = any(REPORTED_REWARD in outcome for outcome in outcomes)
    return [] if are_reported else list(zip(scenarios, outcomes, strict=True))


def unfit(judge: Judge, rollouts: Examined) -> str | None:
    """Return why the judge can score none of these rollouts; None if it can score one, or there are none."""
    reasons = [lacking(judge, scenario, outcome) for scenario, outcome in rollouts]
    return reasons[0] if reasons and all(reasons) else None


def unfit_judges(rollouts: Examined, models: Models) -> Mapping[str, str]:
    """Return the judges that can score none of these rollouts, with the reasons. A judge that cannot be built without
    settings is not among them, because its fit depends on these."""
    found: dict[str, str] = {}
    for name in judges.registry.names():
        try:
            judge = make_judge(Choice(name=name, config={}), JudgeServices(models=models))
        except (ValueError, PluginFault):
            continue
        if (reason := unfit(judge, rollouts)) is not None:
            found[name] = reason
    return found
