"""The policy of an improvement: what is tried, in which order, at which share of the error, and when it ends."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.db.tables import Candidate
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.policy import NextMove, Outlook, next_move
from tests.unit.app.improvements.rows import PILOT, record, row

SCREENED = {"training": {"won": 9, "lost": 0, "tasks": 32}}


def prompt(number: int, state: CandidateState = CandidateState.PROPOSED, **more: Any) -> Candidate:
    return row(number, Rung.PROMPT, state, **more)


def skipped(number: int, rung: Rung) -> Candidate:
    return row(number, rung, CandidateState.SKIPPED)


def move(*candidates: Candidate, outlook: Outlook | None = None, **changes: Any) -> NextMove:
    return next_move(record(*candidates, **changes), outlook or Outlook())


def end(status: ImprovementStatus) -> NextMove:
    return NextMove("end", status=status)


def test_the_agent_is_measured_before_anything_else() -> None:
    unmeasured = row(0, Rung.AS_IT_IS, CandidateState.PROPOSED)
    assert move(unmeasured, prompt(1), pilot=None) == NextMove("measure", 0)
    assert move(prompt(1), pilot=None) == NextMove("pilot")


def test_nothing_is_tried_in_a_broken_environment() -> None:
    assert move(prompt(1), broken=["it leaks"]) == end(ImprovementStatus.NOTHING_HELPS)


def test_an_agent_that_is_good_enough_does_the_test_tasks_only() -> None:
    assert move(prompt(1), target=0.4, pilot=None) == NextMove("test")
    assert move(target=0.4, tested=True) == end(ImprovementStatus.REACHED)


def test_a_prompt_is_screened_and_then_compared() -> None:
    assert move(prompt(1)) == NextMove("screen", 1, Rung.PROMPT)
    assert move(prompt(1, evidence=SCREENED)) == NextMove("compare", 1, Rung.PROMPT, 0.0125)


def test_refused_prompts_cost_the_next_one_error_and_training_none() -> None:
    refused = [prompt(number, CandidateState.REFUSED, error_share=0.01) for number in (1, 2)]
    assert move(*refused, prompt(3, evidence=SCREENED)) == NextMove("compare", 3, Rung.PROMPT, 0.05 / 2 / 12)
    imitation = row(4, Rung.IMITATION, CandidateState.PROPOSED)
    done = [*refused, prompt(3, CandidateState.REFUSED), imitation, skipped(5, Rung.MODEL)]
    assert move(*done) == NextMove("train", 4, Rung.IMITATION, 0.0125)


def test_prompts_end_after_three_in_a_row() -> None:
    refused = [prompt(number, CandidateState.REFUSED) for number in (1, 2, 3)]
    last = move(*refused, prompt(4), outlook=Outlook(proposals_open=True))
    assert (last.kind, last.rung, last.number) == ("skip", Rung.PROMPT, 4)
    between = [prompt(1, CandidateState.REFUSED), prompt(2, CandidateState.ACCEPTED, success=0.5)]
    assert move(*between, prompt(3, CandidateState.REFUSED), prompt(4), champion=2) == NextMove(
        "screen", 4, Rung.PROMPT
    )


@pytest.mark.parametrize(
    ("changes", "rung", "reason"),
    [
        ({}, Rung.PROMPT, "No prompt was proposed"),
        ({}, Rung.MODEL, "No listed model"),
        ({"trainable": False}, Rung.IMITATION, "cannot be trained"),
        ({"oracle": 0, "pilot": {"solved_once": 0.05, "groups_differ": 0.5}}, Rung.IMITATION, "only 5%"),
        ({"oracle": 0, "imitation": {"sources": ["oracle"]}}, Rung.IMITATION, "not a source"),
        ({"pilot": {"solved_once": 0.0, "groups_differ": 0.0}}, Rung.GRPO, "the same reward"),
        ({"outlook": Outlook(too_dear={Rung.GRPO: "It takes an hour."})}, Rung.GRPO, "an hour"),
    ],
)
def test_a_rung_without_anything_to_try_says_why(changes: dict[str, Any], rung: Rung, reason: str) -> None:
    skip = move(rungs=[rung], **changes)
    assert (skip.kind, skip.rung, skip.number) == ("skip", rung, None)
    assert reason in skip.reason


def test_imitation_gives_grpo_differing_groups() -> None:
    imitated = row(1, Rung.IMITATION, CandidateState.ACCEPTED, 0.5)
    equal = {"solved_once": 0.0, "groups_differ": 0.0}
    assert move(imitated, champion=1, rungs=["imitation", "grpo"], pilot=equal) == NextMove("add", rung=Rung.GRPO)


def test_it_waits_for_prompts_only_while_their_time_lasts() -> None:
    is_open = Outlook(proposals_open=True)
    assert move(outlook=is_open) == NextMove("wait")
    assert move(prompt(1), outlook=is_open) == NextMove("screen", 1, Rung.PROMPT)
    assert move().kind == "skip"


@pytest.mark.parametrize(
    ("champion", "too_dear", "status"),
    [
        (0, {}, ImprovementStatus.NOTHING_HELPS),
        (0, {Rung.GRPO: "dear"}, ImprovementStatus.BUDGET),
        (1, {}, ImprovementStatus.BEST_SO_FAR),
    ],
)
def test_the_end_says_what_came_of_it(champion: int, too_dear: dict[Rung, str], status: ImprovementStatus) -> None:
    tried = prompt(1, CandidateState.ACCEPTED if champion else CandidateState.REFUSED, success=0.5)
    rest = [skipped(2, Rung.MODEL), skipped(3, Rung.IMITATION), skipped(4, Rung.GRPO)]
    outlook = Outlook(too_dear=too_dear)
    assert move(tried, *rest, champion=champion, outlook=outlook, tested=True) == end(status)
    assert move(tried, *rest, champion=champion, outlook=outlook, test=0) == end(status)


def _climb(outcomes: Iterator[bool], prompts: int, models: int, target: float | None) -> list[NextMove]:
    """Play an improvement to its end: each job's outcome is drawn."""
    proposed = (prompt(number) for number in range(1, prompts + 1))
    state = record(*proposed, models=["m"] * models, target=target, pilot=None)
    improvement, candidates = state.improvement, list(state.candidates)
    moves: list[NextMove] = []
    while not moves or moves[-1].kind != "end":
        moves.append(turn := next_move(type(state)(improvement, candidates), Outlook()))
        candidate = candidates[turn.number or 0]
        match turn.kind:
            case "pilot":
                improvement.pilot = PILOT
            case "screen":
                if next(outcomes):
                    candidate.evidence = SCREENED
                else:
                    candidate.state = CandidateState.REFUSED
            case "compare" | "train":
                candidate.error_share, candidate.state = turn.error, CandidateState.REFUSED
                if next(outcomes):
                    candidate.state, improvement.champion = CandidateState.ACCEPTED, candidate.number
                    candidate.figures = {"success": {"mean": 0.6}}
            case "add":
                candidates.append(row(len(candidates), turn.rung, CandidateState.PROPOSED))
            case "skip" if turn.number is None:
                candidates.append(skipped(len(candidates), turn.rung))
            case "skip":
                candidate.state = CandidateState.SKIPPED
            case "test":
                improvement.final = {"champion": improvement.champion}
    return moves


@given(st.lists(st.booleans(), min_size=60, max_size=60), st.integers(0, 8), st.integers(0, 3), st.booleans())
def test_any_improvement_ends_and_spends_at_most_its_error(
    outcomes: list[bool], prompts: int, models: int, has_target: bool
) -> None:
    moves = _climb(iter(outcomes), prompts, models, 0.5 if has_target else None)
    assert sum(turn.error for turn in moves) <= 0.05 + 1e-12
    screened = [turn.number for turn in moves if turn.kind == "screen"]
    assert {turn.number for turn in moves if turn.kind == "compare"} <= set(screened)
    assert sum(turn.kind == "test" for turn in moves) == 1
    assert moves[-2].kind == "test"
