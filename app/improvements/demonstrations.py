"""What imitation imitates: the environment's own demonstrations, or the agent's best rollouts of the pilot."""

from learnloop_service.app.errors import Conflict
from learnloop_service.app.improvements.store import Record
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json


async def demonstrations_of(service: HandlerResources, record: Record) -> Json:
    """Return what the warm start of the imitation names. Raises Conflict if no rollout can be imitated."""
    improvement = record.improvement
    if "oracle" in improvement.request["imitation"]["sources"] and improvement.facts["oracle"]:
        return {"oracle": improvement.facts["oracle"]}
    raise Conflict("None of the rollouts of the pilot can be imitated.")
