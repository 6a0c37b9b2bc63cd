"""Figures of improvements for tests."""

from typing import Any

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.figures import (
    AnswerPrice,
    CandidateFigures,
    ImprovementFigures,
    PairedTasks,
    PilotFigures,
)
from learnloop_service.training.statistics.bootstrap import Interval
from learnloop_service.training.statistics.shares import wilson


def success(solved: int, tasks: int) -> Interval:
    return Interval(solved / tasks, *wilson(solved / tasks, tasks))


def accepted(
    rung: Rung, validation: Interval | None, test: Interval | None = None, minutes: float | None = 1.0, **others: Any
) -> CandidateFigures:
    fields = {"validation": validation, "test": test, "minutes": minutes, **others}
    return CandidateFigures(rung, CandidateState.ACCEPTED, **fields)


def as_it_is(validation: Interval | None, test: Interval | None = None) -> CandidateFigures:
    return accepted(Rung.AS_IT_IS, validation, test, 0.2, answer=AnswerPrice(410))


def refused(rung: Rung, name: str = "", state: CandidateState = CandidateState.REFUSED) -> CandidateFigures:
    return CandidateFigures(rung, state, name, minutes=0.25, screening=PairedTasks(5, 6, 32))


PILOT = PilotFigures(tasks=64, samples=8, success=0.17, solved_once=0.69, groups_differ=0.71, inconsistent=0.12)


def improvement(status: ImprovementStatus, *candidates: CandidateFigures, **fields: Any) -> ImprovementFigures:
    defaults: dict[str, Any] = {"target": 0.9, "validation_tasks": 64, "test_tasks": 152}
    return ImprovementFigures(status, candidates, **defaults | fields)
