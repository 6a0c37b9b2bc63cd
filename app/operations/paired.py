"""Pairs a run's own evaluation with a model in an evaluation of the same scenarios."""

from collections.abc import Sequence

from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.stored_evaluation import Slot, parse_evaluation
from learnloop_service.app.evaluations.report import unit_figure
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.runs.resume_point import evaluated_successes


async def paired(
    database: Database, run_id: str, iteration: int, evaluation_id: str, model_index: int
) -> Sequence[float]:
    """Return the success of the run's validation after an iteration minus that of a model of the evaluation, in
    [-1, 1], for each scenario with figures for both, in the order of the scenarios.

    The run's greedy rollouts are compared if the evaluation's are greedy, otherwise its sampled ones. Raises NotFound.
    """
    store = EvaluationStore(database)
    request, rows = parse_evaluation((await store.get(evaluation_id)).request), await store.rows(evaluation_id)
    async with database() as tx:
        by_kind = await evaluated_successes(tx, run_id, iteration)
    successes = by_kind.get(("validation", "sampled" if request.temperature else "greedy"), {})
    gains = []
    for unit in request.units:
        before = unit_figure("success", unit, rows, model_index)
        if before is None:
            continue
        row = next(rows[slot] for pair in unit if (slot := Slot(model_index, *pair)) in rows)
        if row.split == "validation" and row.scenario_id in successes:
            gains.append(successes[row.scenario_id] - before)
    return gains
