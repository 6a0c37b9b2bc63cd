"""The life of a run."""

from hypothesis import given
from hypothesis import strategies as st

from app.domain.run_state import LIVE, TERMINAL, RunStatus, moves, sources


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


@given(st.lists(st.sampled_from(RunStatus)))
def test_however_a_run_moves_only_a_retry_brings_it_back(wanted: list[RunStatus]) -> None:
    status = RunStatus.QUEUED
    for target in wanted:
        if target not in moves(status):
            continue
        if status in TERMINAL:
            assert (status, target) == (RunStatus.FAILED, RunStatus.QUEUED)
        if target is RunStatus.COMPLETED:
            assert status is RunStatus.RUNNING
        status = target


@given(st.sampled_from(RunStatus), st.sampled_from(RunStatus))
def test_moves_and_sources_say_the_same(status: RunStatus, target: RunStatus) -> None:
    assert (target in moves(status)) == (status in sources(target))


def test_every_state_but_the_first_can_be_reached() -> None:
    reached = {RunStatus.QUEUED}
    while more := {target for target in RunStatus if sources(target) & reached} - reached:
        reached |= more
    assert reached == set(RunStatus)
