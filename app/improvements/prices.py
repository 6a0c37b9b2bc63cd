"""What the rungs that are left will take, and whether the budget permits it."""

import asyncio
from collections.abc import Mapping

from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.improvements import forecast
from learnloop_service.app.improvements.amounts import clock
from learnloop_service.app.improvements.jobs import learn_loop
from learnloop_service.app.improvements.store import ImprovementRecord
from learnloop_service.app.operations.start.run_plan import plan_of, request_with_defaults
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.cost import stored_price
from learnloop_service.app.schemas.improvements import RungForecastOut


async def forecasts(service: Resources, record: ImprovementRecord) -> dict[Rung, RungForecastOut]:
    """Return what imitation and GRPO will take, as far as they were not tried; nothing before the pilot."""
    improvement, pilot = record.improvement, record.improvement.pilot
    tried = {row.rung for row in record.candidates if row.state != CandidateState.PROPOSED}
    rungs = [rung for rung in (Rung.IMITATION, Rung.GRPO) if rung in improvement.request["rungs"] and rung not in tried]
    if pilot is None or not rungs or not improvement.facts["trainable"]:
        return {}
    demonstrated = improvement.facts["oracle"] or max(1, round(pilot["solved_once"] * pilot["tasks"]))
    plan = plan_of(learn_loop(record, Rung.GRPO, trainable(record).model), service.settings, improvement.id)
    base = improvement.request["model"]["base_model"] or service.settings.art_base_model
    runs = await forecast.earlier_runs(service.database, improvement.project, plan.backend, base)
    per_hour = await stored_price(service.database)
    imitates = Rung.IMITATION in rungs or any(
        row.rung == Rung.IMITATION and row.state in (CandidateState.TRAINING, CandidateState.ACCEPTED)
        for row in record.candidates
    )
    made = dict[Rung, RungForecastOut]()
    for rung in rungs:
        request = learn_loop(record, rung, base, demonstrations={"oracle": demonstrated})
        whole = await asyncio.to_thread(request_with_defaults, request, service.settings, after_demonstrations=imitates)
        made[rung] = forecast.training(rung, whole, pilot, runs, per_hour)
    return made


def too_dear(
    record: ImprovementRecord, limits: Mapping[str, float | None], expected: Mapping[Rung, RungForecastOut]
) -> Mapping[Rung, str]:
    """Return the rungs that take more than what is left after the reserve for the test tasks, each with the reason."""
    left, pilot = limits.get("max_minutes"), record.improvement.pilot
    if left is None or pilot is None:
        return {}
    answers = record.improvement.request["test"] * (1 + len(record.accepted))
    left -= answers * pilot["seconds"] / 60
    return {
        rung: f"It takes {clock(price.minutes[0])} to {clock(price.minutes[1])} minutes, "
        f"and {max(0.0, left):.1f} are left besides the test tasks."
        for rung, price in expected.items()
        if price.minutes[0] > left
    }


def trainable(record: ImprovementRecord) -> Candidate:
    """Return the newest accepted candidate that can be trained: one with a model of this service."""
    return [row for row in record.candidates if row.state == CandidateState.ACCEPTED and not row.listed][-1]
