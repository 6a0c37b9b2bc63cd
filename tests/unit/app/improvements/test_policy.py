"""The policy of an improvement: what is tried, in which order, at which share of the error, and when it ends."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements import policy
from learnloop_service.app.improvements.policy import CandidateFacts, PilotFacts, Situation

_MEASURED = CandidateFacts(0, Rung.AS_IT_IS, CandidateState.ACCEPTED, success=0.4)
_ALL = frozenset(Rung) - {Rung.AS_IT_IS}


def situation(*candidates: CandidateFacts, **changes: Any) -> Situation:
    """An improvement with these candidates after the agent as it is, which solves 40%; its pilot is made."""
    usual = Situation(
        candidates=[_MEASURED, *candidates],
        champion=0,
        pilot=PilotFacts(solved_once=0.7, groups_differ=0.9),
        target=0.8,
        rungs=_ALL,
        models=0,
        has_oracle=True,
        may_imitate_itself=True,
        trainable=True,
        proposals_open=False,
        test_tasks=64,
        tested=False,
        is_broken=False,
        too_dear={},
    )
    return replace(usual, **changes)


def prompt(number: int, state: CandidateState = CandidateState.PROPOSED, **more: Any) -> CandidateFacts:
    return CandidateFacts(number, Rung.PROMPT, state, **more)


def skipped(number: int, rung: Rung) -> CandidateFacts:
    return CandidateFacts(number, rung, CandidateState.SKIPPED)


def test_the_agent_is_measured_before_anything_else() -> None:
    unmeasured = replace(_MEASURED, state=CandidateState.PROPOSED, success=None)
    assert policy.next_move(situation(candidates=[unmeasured, prompt(1)], pilot=None)) == policy.Measure()
    assert policy.next_move(situation(prompt(1), pilot=None)) == policy.Pilot()


def test_nothing_is_tried_in_a_broken_environment() -> None:
    assert policy.next_move(situation(prompt(1), is_broken=True)) == policy.End(ImprovementStatus.NOTHING_HELPS)


def test_an_agent_that_is_good_enough_does_the_test_tasks_only() -> None:
    assert policy.next_move(situation(prompt(1), target=0.4, pilot=None)) == policy.Test()
    assert policy.next_move(situation(target=0.4, tested=True)) == policy.End(ImprovementStatus.REACHED)


def test_a_prompt_is_screened_and_then_compared() -> None:
    assert policy.next_move(situation(prompt(1))) == policy.Screen(1, 32)
    assert policy.next_move(situation(prompt(1, screened=True))) == policy.Compare(1, 0.0125)


def test_refused_prompts_cost_the_next_one_error_and_training_none() -> None:
    refused = [prompt(number, CandidateState.REFUSED, error_share=0.01) for number in (1, 2)]
    compared = policy.next_move(situation(*refused, prompt(3, screened=True)))
    assert compared == policy.Compare(3, 0.05 / 2 / 12)
    imitation = CandidateFacts(4, Rung.IMITATION, CandidateState.PROPOSED)
    done = [*refused, prompt(3, CandidateState.REFUSED), imitation, skipped(5, Rung.MODEL)]
    assert policy.next_move(situation(*done)) == policy.Train(4, 0.0125)


def test_prompts_end_after_three_in_a_row() -> None:
    refused = [prompt(number, CandidateState.REFUSED) for number in (1, 2, 3)]
    move = policy.next_move(situation(*refused, prompt(4), proposals_open=True))
    assert isinstance(move, policy.Skip)
    assert (move.rung, move.number) == (Rung.PROMPT, 4)
    between = [prompt(1, CandidateState.REFUSED), prompt(2, CandidateState.ACCEPTED, success=0.5)]
    move = policy.next_move(situation(*between, prompt(3, CandidateState.REFUSED), prompt(4), champion=2))
    assert move == policy.Screen(4, 32)


@pytest.mark.parametrize(
    ("changes", "rung", "reason"),
    [
        ({"rungs": frozenset({Rung.PROMPT})}, Rung.PROMPT, "No prompt was proposed"),
        ({"rungs": frozenset({Rung.MODEL})}, Rung.MODEL, "No listed model"),
        ({"rungs": frozenset({Rung.IMITATION}), "trainable": False}, Rung.IMITATION, "cannot be trained"),
        (
            {"rungs": frozenset({Rung.IMITATION}), "has_oracle": False, "pilot": PilotFacts(0.05, 0.5)},
            Rung.IMITATION,
            "only 5%",
        ),
        (
            {"rungs": frozenset({Rung.IMITATION}), "has_oracle": False, "may_imitate_itself": False},
            Rung.IMITATION,
            "not a source",
        ),
        ({"rungs": frozenset({Rung.GRPO}), "pilot": PilotFacts(0.0, 0.0)}, Rung.GRPO, "the same reward"),
        ({"rungs": frozenset({Rung.GRPO}), "too_dear": {Rung.GRPO: "It takes an hour."}}, Rung.GRPO, "an hour"),
    ],
)
def test_a_rung_without_anything_to_try_says_why(changes: dict[str, Any], rung: Rung, reason: str) -> None:
    move = policy.next_move(situation(**changes))
    assert isinstance(move, policy.Skip)
    assert (move.rung, move.number) == (rung, None)
    assert reason in move.reason


def test_imitation_gives_grpo_differing_groups() -> None:
    imitated = CandidateFacts(1, Rung.IMITATION, CandidateState.ACCEPTED, success=0.5)
    move = policy.next_move(
        situation(imitated, champion=1, rungs=frozenset({Rung.IMITATION, Rung.GRPO}), pilot=PilotFacts(0.0, 0.0))
    )
    assert move == policy.Add(Rung.GRPO)


def test_it_waits_for_prompts_only_while_their_time_lasts() -> None:
    assert policy.next_move(situation(proposals_open=True)) == policy.WaitForPrompts()
    assert policy.next_move(situation(prompt(1), proposals_open=True)) == policy.Screen(1, 32)
    assert isinstance(policy.next_move(situation()), policy.Skip)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"champion": 0}, ImprovementStatus.NOTHING_HELPS),
        ({"champion": 0, "too_dear": {Rung.GRPO: "dear"}}, ImprovementStatus.BUDGET),
        ({"champion": 1}, ImprovementStatus.BEST_SO_FAR),
    ],
)
def test_the_end_says_what_came_of_it(changes: dict[str, Any], status: ImprovementStatus) -> None:
    accepted = prompt(1, CandidateState.ACCEPTED if changes["champion"] else CandidateState.REFUSED, success=0.5)
    rest = [skipped(2, Rung.MODEL), skipped(3, Rung.IMITATION), skipped(4, Rung.GRPO)]
    assert policy.next_move(situation(accepted, *rest, tested=True, **changes)) == policy.End(status)
    assert policy.next_move(situation(accepted, *rest, test_tasks=0, **changes)) == policy.End(status)


def _climb(outcomes: Iterator[bool], prompts: int, models: int, target: float | None) -> list[policy.Move]:
    """Play an improvement to its end: each job's outcome is drawn."""
    state = situation(*(prompt(number) for number in range(1, prompts + 1)), models=models, target=target, pilot=None)
    moves: list[policy.Move] = []
    while not moves or not isinstance(moves[-1], policy.End):
        moves.append(move := policy.next_move(state))
        candidates = list(state.candidates)

        def decide(number: int, **values: Any) -> None:
            candidates[number] = replace(candidates[number], **values)  # noqa: B023 - called in this turn

        match move:
            case policy.Pilot():
                state = replace(state, pilot=PilotFacts(0.7, 0.9))
            case policy.Screen(number, _):
                better = next(outcomes)
                decide(number, screened=better, state="proposed" if better else "refused")
            case policy.Compare(number, error) | policy.Train(number, error):
                better = next(outcomes)
                decide(number, error_share=error, state="accepted" if better else "refused", success=0.6)
                state = replace(state, champion=number if better else state.champion)
            case policy.Add(rung, _):
                candidates.append(CandidateFacts(len(candidates), rung, CandidateState.PROPOSED))
            case policy.Skip(rung, _, None):
                candidates.append(skipped(len(candidates), rung))
            case policy.Skip(rung, _, int(number)):
                decide(number, state=CandidateState.SKIPPED)
            case policy.Test():
                state = replace(state, tested=True)
        candidates = [replace(candidate, state=CandidateState(candidate.state)) for candidate in candidates]
        state = replace(state, candidates=candidates)
    return moves


@given(st.lists(st.booleans(), min_size=60, max_size=60), st.integers(0, 8), st.integers(0, 3), st.booleans())
def test_any_improvement_ends_and_spends_at_most_its_error(
    outcomes: list[bool], prompts: int, models: int, has_target: bool
) -> None:
    moves = _climb(iter(outcomes), prompts, models, 0.5 if has_target else None)
    shares = [move.error for move in moves if isinstance(move, policy.Compare | policy.Train)]
    assert sum(shares) <= 0.05 + 1e-12
    screened = [move.number for move in moves if isinstance(move, policy.Screen)]
    assert {move.number for move in moves if isinstance(move, policy.Compare)} <= set(screened)
    assert sum(isinstance(move, policy.Test) for move in moves) == 1
    assert isinstance(moves[-2], policy.Test)
