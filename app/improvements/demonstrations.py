"""What imitation imitates: the environment's own demonstrations, or the agent's best rollouts of the pilot."""

from sqlalchemy import func, select

from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.errors import Conflict
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.improvements.store import ImprovementRecord
from learnloop_service.app.operations.rejection_sampling import RolloutSource, best_rollouts, save_best
from learnloop_service.app.resources import Resources
from learnloop_service.app.schemas.datasets import BestOfEvaluation
from learnloop_service.environment.json_type import Json

_PER_TASK = 4
"""Maximum number of its solutions of a task that the agent imitates."""


async def demonstrations_of(service: Resources, record: ImprovementRecord) -> Json:
    """Return what the warm start of imitation names. Raises Conflict if no rollout can be imitated.

    Repeated, it stores the same demonstrations, which makes no new version.
    """
    improvement = record.improvement
    if "oracle" in improvement.request["imitation"]["sources"] and improvement.facts["oracle"]:
        return {"oracle": improvement.facts["oracle"]}
    assert improvement.pilot is not None  # it is made before any rung
    pilot = improvement.pilot["evaluation_id"]
    solved = select(func.min(Trajectory.reward)).where(Trajectory.evaluation_id == pilot, Trajectory.success.is_(True))
    async with service.database() as tx:
        least = (await tx.execute(solved)).scalar_one()
    if least is None:
        raise Conflict("No rollout of the pilot solved its task, so there is nothing to imitate.")
    name = f"improvement-{improvement.id.lower()}"
    selection = BestOfEvaluation(name=name, min_reward=least, per_scenario=_PER_TASK)
    source = RolloutSource.of_evaluation(await EvaluationStore(service.database).get(pilot), selection)
    best, _ = await best_rollouts(service.database, source, selection, service.settings.max_graph_bytes)
    version = await save_best(service.database, improvement.project, name, source, best)
    return {"dataset": f"{version.name}@{version.version}"}
