"""Improvements for tests."""

from datetime import UTC, datetime
from typing import Any

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.schemas.improvements import (
    AnswerPriceOut,
    CandidateOut,
    EvidenceOut,
    ImprovementOut,
    PatternOut,
    PilotOut,
    PriceOut,
)
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.prompts import PromptUsed
from learnloop_service.training.statistics.shares import wilson

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def success(solved: int, tasks: int) -> IntervalOut:
    low, high = wilson(solved / tasks, tasks)
    return IntervalOut(mean=solved / tasks, low=low, high=high)


def pairs(won: int, lost: int, tasks: int) -> EvidenceOut:
    return EvidenceOut(won=won, lost=lost, tasks=tasks)


def answer(tokens: float, usd: float | None = None) -> AnswerPriceOut:
    return AnswerPriceOut(tokens=tokens, seconds=None, usd=usd)


def pattern(sentence: str, tasks: int, failures: int, *rollouts: str) -> PatternOut:
    return PatternOut(sentence=sentence, tasks=tasks, failures=failures, rollouts=list(rollouts))


def candidate(
    rung: Rung, state: CandidateState, name: str = "", minutes: float = 0.0, usd: float | None = None, **fields: Any
) -> CandidateOut:
    prompt = PromptUsed(sha256="0" * 64, name=name, version=1) if rung is Rung.PROMPT and name else None
    nothing = ("reason", "success", "test", "screening", "evidence", "error_share", "answer", "run_id", "screening_id")
    return CandidateOut.model_validate(
        dict.fromkeys((*nothing, "gate_id"))
        | {
            "number": 0,
            "author": "key:a",
            "why": "",
            "only_by_person": False,
            "listed": False,
            "created_at": NOW,
            "decided_at": NOW,
        }
        | {"rung": rung, "state": state, "model": name or "learnloop/tiny", "prompt": prompt}
        | {"price": PriceOut(minutes=minutes, tokens=0, usd=usd)}
        | fields
    )


def accepted(
    rung: Rung, validation: IntervalOut | None, test: IntervalOut | None = None, minutes: float = 1.0, **others: Any
) -> CandidateOut:
    return candidate(rung, CandidateState.ACCEPTED, minutes=minutes, success=validation, test=test, **others)


def as_it_is(validation: IntervalOut | None, test: IntervalOut | None = None) -> CandidateOut:
    return accepted(Rung.AS_IT_IS, validation, test, 0.2, answer=answer(410))


def refused(rung: Rung, name: str = "", state: CandidateState = CandidateState.REFUSED) -> CandidateOut:
    return candidate(rung, state, name, 0.25, screening=pairs(5, 6, 32))


PILOT = PilotOut(
    evaluation_id="01K", tasks=64, samples=8, success=0.17, solved_once=0.69, groups_differ=0.71, inconsistent=0.12
)


def improvement(
    status: ImprovementStatus,
    *tried: CandidateOut,
    validation: int = 64,
    test: int = 152,
    usd: float | None = None,
    **fields: Any,
) -> ImprovementOut:
    nothing = ("reason", "finished_at", "pilot", "smallest_gain", "pattern", "confirmed", "job", "waits_until")
    champion = max(number for number, row in enumerate(tried) if not number or row.state == CandidateState.ACCEPTED)
    price = PriceOut(minutes=sum(row.price.minutes for row in tried), tokens=0, usd=usd)
    return ImprovementOut.model_validate(
        dict.fromkeys((*nothing, "sentence"))
        | {"id": "01K", "project": "learnloop", "status": status, "environment": "email_search", "target": 0.9}
        | {"champion": champion, "candidates": len(tried), "actor": "key:a", "created_at": NOW, "tried": list(tried)}
        | {"request": {"validation": validation, "test": test}, "can_show": [], "forecast": [], "test_looks": 1}
        | {"price": price}
        | fields
    )
