"""Says which judges can score the rollouts of a run at all, by some of them, or by what they begin with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import select

import learnloop_service.judges.registry
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.runs.configuration import make_judge
from learnloop_service.app.runs.stored_rollouts import scenario_of
from learnloop_service.environment.base import REPORTED_REWARD, Environment, Outcome, Scenario
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.judges.base import Judge, JudgeServices, Models, lacking

_MOST_EXAMINED = 20

Examined = tuple[Scenario, Outcome]
"""A scenario, and the outcome of a rollout."""


async def examined(database: Database, run_id: str) -> list[Examined]:
    """Return the first rollouts of the run that finished."""
    columns = (Trajectory.scenario_id, Trajectory.split, Trajectory.scenario, Trajectory.outcome)
    query = select(*columns).where(Trajectory.run_id == run_id, Trajectory.error.is_(None))
    async with database() as tx:
        rows = (await tx.execute(query.order_by(Trajectory.seq).limit(_MOST_EXAMINED))).all()
    return [(scenario_of(row), row.outcome) for row in rows]


def unattempted(environment: Environment, seed: int) -> Iterator[Examined]:
    """Yield training scenarios with the outcomes that their rollouts begin with; none if rollouts report rewards. An
    episode can take long to make, so look at no more of them than needed."""
    for scenario in environment.scenarios("train", _MOST_EXAMINED, seed):
        outcome = environment.episode(scenario).outcome()
        if REPORTED_REWARD in outcome:
            return
        yield scenario, outcome


def unfit(judge: Judge, rollouts: Iterable[Examined]) -> str | None:
    """Return why the judge can score none of these rollouts; None if it can score one, or there are none. Looks at them
    until it can."""
    first = None
    for scenario, outcome in rollouts:
        if (reason := lacking(judge, scenario, outcome)) is None:
            return None
        first = first or reason
    return first


def unfit_judges(rollouts: Sequence[Examined], models: Models) -> Mapping[str, str]:
    """Return the judges that can score none of these rollouts, with the reasons. A judge that cannot be built without
    settings is not among them, because its fit depends on these."""
    found: dict[str, str] = {}
    for name in learnloop_service.judges.registry.names():
        try:
            judge = make_judge(Choice(name=name, config={}), JudgeServices(models=models))
        except (ValueError, PluginFault):
            continue
        if (reason := unfit(judge, rollouts)) is not None:
            found[name] = reason
    return found
