"""The life of a run."""

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.domain.run_state import LIVE, TERMINAL, Move, RunStatus


def test_the_states_are_the_apis() -> None:
    assert {str(status) for status in RunStatus} == {
        "queued",
        "running",
        "paused",
        "completed",
        "failed",
        "cancelled",
    }
    assert {RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED} == LIVE


@given(st.lists(st.sampled_from(Move)))
def test_only_a_retry_or_a_reopening_brings_back_what_has_ended(moves: list[Move]) -> None:
    status = RunStatus.QUEUED
    for move in moves:
        if status not in move.sources:
            continue
        if status in TERMINAL:
            assert (status, move) in {(RunStatus.FAILED, Move.RETRY), (RunStatus.CANCELLED, Move.REOPEN)}
        if move.target is RunStatus.COMPLETED:
            assert status is RunStatus.RUNNING
        status = move.target


def test_every_state_but_the_first_can_be_reached() -> None:
    reached = {RunStatus.QUEUED}
    while more := {move.target for move in Move if move.sources & reached} - reached:
        reached |= more
    assert reached == set(RunStatus)
