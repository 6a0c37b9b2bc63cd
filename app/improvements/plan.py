"""What an improvement would do and take, before anything of it is stored."""

import asyncio
from collections.abc import Sequence
from statistics import median

from sqlalchemy import select

from learnloop_service.app.db.tables import Candidate, EvaluationJob, Improvement
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.improvements.forecast import EARLIER, forecasts
from learnloop_service.app.improvements.policy import PILOT_SAMPLES, PILOT_TASKS, SCREENING, why_not
from learnloop_service.app.improvements.store import ImprovementRecord
from learnloop_service.app.resources import Resources
from learnloop_service.app.schemas.improvements import ImprovementPlan, PlannedRungOut
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.statistics.power import power

_EVALUATIONS = 10
"""Number of the newest evaluations that say what a rollout takes."""


async def plan_of(service: Resources, improvement: Improvement, candidates: Sequence[Candidate]) -> ImprovementPlan:
    """Return the plan of an improvement that is not stored, as if the agent had been measured."""
    request = improvement.request
    shows = await asyncio.to_thread(power, request["validation"])
    improvement.pilot, source = await _expected_pilot(service, improvement)
    candidates[0].state = CandidateState.ACCEPTED
    record = ImprovementRecord(improvement, candidates)
    trainings = {} if source is None else await forecasts(service, record)
    rungs = []
    for rung in (rung for rung in Rung if rung is Rung.AS_IT_IS or rung in request["rungs"]):
        known = len(request["models"]) if rung is Rung.MODEL else sum(row.rung == rung for row in candidates)
        is_due = known or (rung is Rung.PROMPT and request["wait_minutes"])
        planned: dict[str, Json] = dict.fromkeys(("minutes", "usd", "source", "gain"))
        if rung in trainings:
            planned |= trainings[rung].model_dump()
        elif rung not in (Rung.IMITATION, Rung.GRPO) and source is not None and known:
            low, high = (rollouts * improvement.pilot["seconds"] / 60 for rollouts in _rollouts(rung, known, request))
            planned |= {"minutes": (low / EARLIER, high * EARLIER), "source": source}
        planned |= {"rung": rung, "candidates": known, "why_not": None if is_due else why_not(rung, record)}
        rungs.append(PlannedRungOut.model_validate(planned))
    return ImprovementPlan(request=request, rungs=rungs, can_show=shows.sentences, smallest_gain=shows.gain)


def _rollouts(rung: Rung, candidates: int, request: Json) -> tuple[int, int]:
    """Return how many rollouts a rung needs at least and at most: of candidates that screening refuses, and of those
    that do all validation tasks, too, each time beside a champion that is measured anew."""
    validation = request["validation"]
    if rung is Rung.AS_IT_IS:
        whole = validation + PILOT_SAMPLES * min(PILOT_TASKS, validation)
        return whole + request["test"], whole + 2 * request["test"]
    screened = min(SCREENING[rung][0], max(1, validation // 2))
    return candidates * screened, 2 * candidates * (screened + validation)


async def _expected_pilot(service: Resources, improvement: Improvement) -> tuple[Json, str | None]:
    """Return what the pilot would show if all goes well, with the pace of earlier evaluations in the environment, and
    what that is from; None if there are none."""
    row, name = EvaluationJob, improvement.request["environment"]["name"]
    alike = (row.project == improvement.project, row.status == EvaluationStatus.COMPLETED, row.total > 0)
    in_it = row.request["environment"]["name"].astext == name
    newest = select(row).where(*alike, in_it, row.driven_s > 0).order_by(row.id.desc()).limit(_EVALUATIONS)
    async with service.database() as tx:
        jobs = (await tx.execute(newest)).scalars().all()
    pilot: Json = {"tasks": min(PILOT_TASKS, improvement.request["validation"])}
    pilot |= {"solved_once": 1.0, "groups_differ": 1.0}
    paces = [
        (job.driven_s / job.total, model["prompt_tokens"] + model["completion_tokens"])
        for job in jobs
        for model in (job.report or {}).get("models", ())[:1]
        if model.get("prompt_tokens") is not None
    ]
    if not paces:
        return pilot, None
    pilot["seconds"], pilot["tokens"] = (median(column) for column in zip(*paces, strict=True))
    return pilot, f"by {counted(len(paces), 'earlier evaluation')} in this environment"
