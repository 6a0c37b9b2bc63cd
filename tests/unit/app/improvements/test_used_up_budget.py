"""How an improvement ends whose budget is used up."""

from typing import Any

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.policy import NextMove, Outlook, next_move
from tests.unit.app.improvements.rows import record, row


def move(**changes: Any) -> NextMove:
    """The next move with a prompt that solves 90%, once a limit was reached."""
    accepted = row(1, Rung.PROMPT, CandidateState.ACCEPTED, 0.9)
    return next_move(record(accepted, champion=1, **changes), Outlook(is_used_up=True))


def test_it_has_reached_its_target_although_the_test_tasks_used_up_the_budget() -> None:
    assert move(tested=True) == move() == NextMove("end", status=ImprovementStatus.REACHED)


def test_nothing_is_started_any_more() -> None:
    used_up = NextMove("end", status=ImprovementStatus.BUDGET)
    assert move(target=0.95, tested=True) == move(target=None) == used_up
    unmeasured = record(row(0, Rung.AS_IT_IS, CandidateState.PROPOSED))
    assert next_move(unmeasured, Outlook(is_used_up=True)) == used_up
    assert next_move(unmeasured, Outlook()) == NextMove("measure", 0)
