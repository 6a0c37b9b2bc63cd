"""Says which rollouts of an earlier evaluation serve again, so that a champion is not measured for each candidate.

They do where the world does not change meanwhile, and the same request would make the same rollouts again: a model on
the engine, the built-in loop, an environment that repeats. Each evaluation has copies with verdicts of its own, because
judges compare the rollouts of a scenario. So its figures do not change when the earlier evaluation is deleted.
"""

from collections.abc import Mapping
from typing import Any

from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import Comparison, Contestant, StoredEvaluation, parse_evaluation
from learnloop_service.app.errors import NotFound
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.environment.registry import traits

_SAME = (
    *("environment", "agent", "split", "seed", "temperature"),
    *("max_turns", "max_completion_tokens", "rollout_timeout_s"),
)


async def recorded_rollouts(
    store: EvaluationStore, job: EvaluationJob, contestant: Contestant
) -> Mapping[tuple[int, int], Any]:
    """Return the rows of the recorded rollouts that serve again for a contestant of the evaluation, by the numbers of
    scenario and sample. There are none if the earlier evaluation was deleted, has lost them because of their age, or
    differs. One that failed is made again, because the reason can be outside the model."""
    if contestant.recorded is None or contestant.recorded == job.id:
        return {}
    try:
        source = await store.get(contestant.recorded)
    except NotFound:
        return {}
    request, earlier = parse_evaluation(job.request), parse_evaluation(source.request)
    model = same_model(request, contestant, earlier)
    if model is None or source.project != job.project:
        return {}
    rows = (await store.rows(source.id)).items()
    return {(slot.scenario, slot.sample): row for slot, row in rows if slot.model == model and row.error is None}


def same_model(request: StoredEvaluation, contestant: Contestant, earlier: StoredEvaluation) -> int | None:
    """Return the number of the model in an earlier evaluation whose rollouts the contestant would repeat; None without
    one."""
    is_on_engine = contestant.kind == "trained" and contestant.spec is None
    if not is_on_engine or request.agent is not None or not traits(request.environment.name).repeats:
        return None
    if not isinstance(earlier, Comparison) or any(getattr(request, name) != getattr(earlier, name) for name in _SAME):
        return None
    models = [_identity(model) for model in earlier.models]
    return models.index(_identity(contestant)) if _identity(contestant) in models else None


def _identity(contestant: Contestant) -> tuple[object, ...]:
    """Return what the rollouts of a contestant depend on, which is not what it is called."""
    prompt = contestant.prompt and contestant.prompt.sha256
    return contestant.kind, contestant.model, contestant.step, contestant.spec, prompt
