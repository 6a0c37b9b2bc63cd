"""How an improvement ends whose budget is used up."""

from dataclasses import replace

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.policy import CandidateFacts, End, Measure, PilotFacts, Situation, next_move

AS_IT_IS = CandidateFacts(0, Rung.AS_IT_IS, CandidateState.ACCEPTED, success=0.4)
USED_UP = Situation(
    candidates=[AS_IT_IS, CandidateFacts(1, Rung.PROMPT, CandidateState.ACCEPTED, success=0.9)],
    champion=1,
    pilot=PilotFacts(solved_once=0.7, groups_differ=0.9),
    target=0.8,
    rungs=frozenset(Rung),
    models=0,
    has_oracle=True,
    may_imitate_itself=True,
    trainable=True,
    proposals_open=False,
    test_tasks=64,
    tested=True,
    is_broken=False,
    too_dear={},
    is_used_up=True,
)


def test_it_has_reached_its_target_although_the_test_tasks_used_up_the_budget() -> None:
    assert next_move(USED_UP) == End(ImprovementStatus.REACHED)
    assert next_move(replace(USED_UP, tested=False)) == End(ImprovementStatus.REACHED)


def test_nothing_is_started_any_more() -> None:
    assert next_move(replace(USED_UP, target=0.95)) == End(ImprovementStatus.BUDGET)
    assert next_move(replace(USED_UP, target=None, tested=False)) == End(ImprovementStatus.BUDGET)
    unmeasured = replace(AS_IT_IS, state=CandidateState.PROPOSED, success=None)
    before = replace(USED_UP, candidates=[unmeasured], champion=0)
    assert next_move(before) == End(ImprovementStatus.BUDGET)
    assert next_move(replace(before, is_used_up=False)) == Measure()
