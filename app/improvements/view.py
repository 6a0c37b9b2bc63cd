"""An improvement as the API shows it, from its rows and from what its evaluations and runs used."""

from collections.abc import Mapping

from learnloop_service.app.db.tables import Candidate, Improvement
from learnloop_service.app.domain.improvement_state import LIVE, ImprovementStatus
from learnloop_service.app.improvements.budget import evaluations_of, total
from learnloop_service.app.improvements.store import ImprovementStore, Record, Used
from learnloop_service.app.schemas.improvements import (
    AnswerPriceOut,
    CandidateOut,
    EvidenceOut,
    ImprovementBrief,
    ImprovementOut,
    PilotOut,
    PriceOut,
)
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.environment.json_type import Json


def brief(improvement: Improvement, candidates: int) -> ImprovementBrief:
    """Return an improvement as it is listed."""
    return ImprovementBrief.model_validate(_brief(improvement, candidates))


async def whole(store: ImprovementStore, record: Record) -> ImprovementOut:
    """Return an improvement with its candidates."""
    improvement, pilot = record.improvement, record.improvement.pilot
    used = await store.used(record.candidates, evaluations_of(record))
    tested = improvement.final or {"success": {}, "evaluation_ids": []}
    return ImprovementOut.model_validate(
        _brief(improvement, len(record.candidates))
        | {
            "request": improvement.request,
            "tried": [_candidate(row, tested["success"].get(str(row.number)), used) for row in record.candidates],
            "pilot": None if pilot is None else PilotOut.model_validate(pilot),
            "can_show": [],
            "forecast": [],
            "price": _price(total(used)),
            "confirmed": _confirmed(improvement),
            "test_looks": len(tested["evaluation_ids"]),
            "job": None if improvement.job_id is None else f"/{improvement.job_kind}s/{improvement.job_id}",
            "waits_until": improvement.waits_until,
            "sentence": None,
        }
    )


def _brief(improvement: Improvement, candidates: int) -> dict[str, Json]:
    same = ("id", "project", "status", "reason", "champion", "actor", "created_at", "finished_at")
    request = improvement.request
    return {name: getattr(improvement, name) for name in same} | {
        "environment": request["environment"]["name"],
        "target": request["target"],
        "candidates": candidates,
    }


def _candidate(row: Candidate, test: Json, used: Mapping[str, Used]) -> CandidateOut:
    same = (
        *("number", "rung", "state", "reason", "author", "why", "model", "prompt", "only_by_person", "error_share"),
        *("run_id", "screening_id", "gate_id", "created_at", "decided_at"),
    )
    figures, evidence = row.figures, row.evidence or {}
    jobs = [id for id in (row.screening_id, row.gate_id, row.run_id) if id is not None]
    return CandidateOut(
        **{name: getattr(row, name) for name in same},
        success=None if figures is None else IntervalOut.model_validate(figures["success"]),
        test=test,
        screening=EvidenceOut.model_validate(evidence["training"]) if "training" in evidence else None,
        evidence=EvidenceOut.model_validate(evidence) if "won" in evidence else None,
        price=_price(total({id: used[id] for id in jobs if id in used})),
        answer=None if figures is None else AnswerPriceOut.model_validate(figures),
    )


def _price(used: Used) -> PriceOut:
    return PriceOut(minutes=used.minutes, tokens=used.tokens, usd=used.usd)


def _confirmed(improvement: Improvement) -> bool | None:
    """Return whether the test tasks reach the target as well; None if that is unknown."""
    target, final = improvement.request["target"], improvement.final
    if improvement.status in LIVE or target is None or final is None or final["champion"] != improvement.champion:
        return None
    success: Json = final["success"][str(improvement.champion)]
    return improvement.status == ImprovementStatus.REACHED and success["mean"] >= target
