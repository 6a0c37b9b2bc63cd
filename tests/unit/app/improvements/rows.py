"""Rows of improvements for tests of the policy."""

from typing import Any

from learnloop_service.app.db.tables import Candidate, Improvement
from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.improvements.store import ImprovementRecord

PILOT = {"solved_once": 0.7, "groups_differ": 0.9}


def row(number: int, rung: Rung, state: CandidateState, success: float | None = None, **columns: Any) -> Candidate:
    figures = None if success is None else {"success": {"mean": success}}
    return Candidate(number=number, rung=rung, state=state, figures=figures, **columns)


def record(*candidates: Candidate, champion: int = 0, pilot: Any = PILOT, **changes: Any) -> ImprovementRecord:
    """An improvement with these candidates after the agent as it is, which solves 40%; its pilot is made. Candidate 0
    takes the place of that agent."""
    facts = {name: changes.pop(name) for name in ("oracle", "trainable", "broken") if name in changes}
    request: dict[str, Any] = {"target": 0.8, "rungs": [rung for rung in Rung if rung is not Rung.AS_IT_IS]}
    request |= {"models": [], "imitation": {"sources": ["oracle", "own"]}, "test": 64}
    final = {"champion": champion} if changes.pop("tested", False) else None
    improvement = Improvement(
        request=request | changes,
        facts={"oracle": 480, "trainable": True} | facts,
        champion=champion,
        pilot=pilot,
        final=final,
    )
    if not candidates or candidates[0].number:
        candidates = (row(0, Rung.AS_IT_IS, CandidateState.ACCEPTED, 0.4), *candidates)
    return ImprovementRecord(improvement, list(candidates))
