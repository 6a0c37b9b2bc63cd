"""An improvement as the API shows it, from its rows and from what its evaluations and runs used."""

import asyncio
from collections.abc import Mapping

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Candidate, Improvement, Run
from learnloop_service.app.domain.improvement_state import LIVE, ImprovementStatus
from learnloop_service.app.errors import NotFound
from learnloop_service.app.improvements.forecast import forecasts
from learnloop_service.app.improvements.jobs import label_of
from learnloop_service.app.improvements.store import ImprovementRecord, ImprovementStore, validation_rollouts
from learnloop_service.app.improvements.summary import sentence
from learnloop_service.app.operations.failure_map import failure_map
from learnloop_service.app.operations.failure_sides import FailureSide
from learnloop_service.app.resources import Resources
from learnloop_service.app.runs.diagnoses import causes_of
from learnloop_service.app.schemas.improvements import (
    CandidateOut,
    ImprovementBrief,
    ImprovementOut,
    PatternOut,
    PriceOut,
)
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.power import power


def brief(improvement: Improvement, candidates: int) -> ImprovementBrief:
    """Return an improvement as it is listed."""
    return ImprovementBrief.model_validate(_brief(improvement, candidates))


async def whole(service: Resources, id: str) -> ImprovementOut:
    """Return an improvement with its candidates. Raises NotFound."""
    store = ImprovementStore(service.database)
    record = await store.read(id)
    shows = await asyncio.to_thread(power, record.improvement.request["validation"])
    improvement = record.improvement
    used = await store.used(record)
    is_live = improvement.status in LIVE
    expected = await forecasts(service, record) if is_live else {}
    tested = (improvement.final or {}).get("success", {})
    shown = ImprovementOut.model_validate(
        _brief(improvement, len(record.candidates))
        | {
            "tried": [_candidate(row, tested.get(str(row.number)), used) for row in record.candidates],
            "can_show": shows.sentences,
            "smallest_gain": shows.gain,
            "pattern": None if is_live else await _largest_pattern(service.database, record),
            "forecast": list(expected.values()),
            "price": PriceOut.total(used.values()),
            "confirmed": _confirmed(improvement),
            "test_looks": len(record.test_evaluations),
            "job": None if improvement.job_id is None else f"/{improvement.job_kind}s/{improvement.job_id}",
            "sentence": None,
        }
    )
    if not is_live:
        runs = [await store.job(Run, row.run_id) for row in record.candidates if row.run_id is not None]
        causes = [cause.replace("_", " ") for run in reversed(runs) if run is not None for cause in causes_of(run)]
        shown.sentence = sentence(shown, improvement.facts.get("broken") or (), causes)
    return shown


async def _largest_pattern(database: Database, record: ImprovementRecord) -> PatternOut | None:
    """Return the largest pattern of the champion's failures on validation tasks; None if it has none."""
    environment = record.improvement.request["environment"]["name"]
    conditions = validation_rollouts(record.champion)
    side = FailureSide(label_of(record.champion), "its validation tasks", environment, conditions)
    try:
        failures = await failure_map(database, side, None)
    except NotFound:  # its rollouts were deleted because of their age
        return None
    if not failures.patterns:
        return None
    [largest, *_] = failures.patterns
    return PatternOut(
        sentence=largest.sentence,
        tasks=largest.now.tasks,
        failures=failures.now.tasks - failures.now.solved.tasks,
        rollouts=[rollout.trajectory_id for rollout in largest.rollouts],
    )


def _brief(improvement: Improvement, candidates: int) -> dict[str, Json]:
    request = improvement.request
    environment, target = request["environment"]["name"], request["target"]
    shown = ImprovementOut.shown_of(improvement)
    return shown | {"environment": environment, "target": target, "candidates": candidates}


def _candidate(row: Candidate, test: Json, used: Mapping[str, PriceOut]) -> CandidateOut:
    figures, evidence = row.figures, row.evidence or {}
    jobs = {row.screening_id, row.gate_id, row.run_id}
    return CandidateOut.model_validate(
        CandidateOut.shown_of(row)
        | {
            "success": figures and figures["success"],
            "test": test,
            "screening": evidence.get("training"),
            "evidence": evidence if "won" in evidence else None,
            "price": PriceOut.total(price for id, price in used.items() if id in jobs),
            "answer": figures,
        }
    )


def _confirmed(improvement: Improvement) -> bool | None:
    """Return whether the test tasks reach the target as well; None if that is unknown."""
    target, final = improvement.request["target"], improvement.final
    if improvement.status in LIVE or target is None or final is None or final["champion"] != improvement.champion:
        return None
    success: Json = final["success"][str(improvement.champion)]
    return improvement.status == ImprovementStatus.REACHED and success["mean"] >= target
