"""Says which judges can be used here, and which can score the rollouts of a run at all, by some of them, or by what
they begin with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select

import learnloop_service.judges.registry
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.runs.configuration import make_judge
from learnloop_service.app.runs.stored_rollouts import scenario_of
from learnloop_service.environment.base import REPORTED_REWARD, Environment, Outcome, Scenario
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.judges.base import Judge, JudgeServices, Models, UnknownModel, lacking
from learnloop_service.judges.registry import UnknownJudge

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


class Fit(NamedTuple):
    """Whether a judge can be used with its default settings."""

    needs: str | None = None
    """What it needs that is missing here; None if nothing is, or if it has to be given settings."""
    unfit: str | None = None
    """Why it can score none of the rollouts that were looked at; None if it can score one, or none were."""


def judges_here(rollouts: Sequence[Examined], models: Models) -> Mapping[str, Fit]:
    """Return all judges with whether they can be used here, and on these rollouts."""
    return {name: _fit(name, rollouts, models) for name in learnloop_service.judges.registry.names()}


def _fit(name: str, rollouts: Sequence[Examined], models: Models) -> Fit:
    try:
        judge = make_judge(Choice(name=name, config={}), JudgeServices(models=models))
    except (UnknownModel, UnknownJudge, PluginFault) as error:
        return Fit(needs=str(error))
    except ValueError:
        return Fit()
    return Fit(unfit=unfit(judge, rollouts))
