"""What the policy decides on, from the rows of an improvement."""

from collections.abc import Mapping

from sqlalchemy import func, select

from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.improvements.policy import CandidateFacts, PilotFacts, Situation
from learnloop_service.app.improvements.prices import forecasts, too_dear
from learnloop_service.app.improvements.store import ImprovementRecord
from learnloop_service.app.service import HandlerResources


async def situation_of(
    service: HandlerResources, record: ImprovementRecord, limits: Mapping[str, float | None]
) -> Situation:
    """Return the situation of an improvement without a job in progress."""
    improvement, request = record.improvement, record.improvement.request
    pilot, final = improvement.pilot, improvement.final
    sources = request["imitation"]["sources"]
    return Situation(
        candidates=[_facts(candidate) for candidate in record.candidates],
        champion=improvement.champion,
        pilot=None if pilot is None else PilotFacts(pilot["solved_once"], pilot["groups_differ"]),
        target=request["target"],
        rungs=frozenset(map(Rung, request["rungs"])),
        models=len(request["models"]) if Rung.MODEL in request["rungs"] else 0,
        has_oracle="oracle" in sources and bool(improvement.facts["oracle"]),
        may_imitate_itself="own" in sources,
        trainable=improvement.facts["trainable"],
        proposals_open=await _is_open(service, record),
        test_tasks=request["test"],
        tested=final is not None and final["champion"] == improvement.champion,
        is_broken=bool(improvement.facts.get("broken")),
        too_dear=too_dear(record, limits, await forecasts(service, record) if limits else {}),
        is_used_up=any(limit is not None and limit <= 0 for limit in limits.values()),
    )


async def _is_open(service: HandlerResources, record: ImprovementRecord) -> bool:
    """Whether there is time left for prompts to be proposed."""
    improvement = record.improvement
    if improvement.waits_until is None:
        return bool(improvement.request["wait_minutes"])
    async with service.database() as tx:
        return bool((await tx.execute(select(func.now() < improvement.waits_until))).scalar_one())


def _facts(candidate: Candidate) -> CandidateFacts:
    return CandidateFacts(
        number=candidate.number,
        rung=Rung(candidate.rung),
        state=CandidateState(candidate.state),
        listed=candidate.listed,
        error_share=candidate.error_share,
        success=None if candidate.figures is None else candidate.figures["success"]["mean"],
        screened=bool(candidate.evidence and "training" in candidate.evidence),
    )
