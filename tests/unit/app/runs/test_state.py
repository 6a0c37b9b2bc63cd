"""The life of a run."""

from hypothesis import given
from hypothesis import strategies as st

from app.runs.state import LIVE, TERMINAL, RunStatus, sources


def test_the_states_are_the_apis() -> None:
    assert {str(status) for status in RunStatus} == {"queued", "running", "completed", "failed", "cancelled"}
    assert {RunStatus.QUEUED, RunStatus.RUNNING} == LIVE


@given(st.lists(st.sampled_from(RunStatus)))
def test_however_a_run_moves_it_ends_once(wanted: list[RunStatus]) -> None:
    status = RunStatus.QUEUED
    seen_terminal = False
    for target in wanted:
        if status in sources(target):
            assert not seen_terminal
            assert target == RunStatus.RUNNING or status == RunStatus.RUNNING or target == RunStatus.CANCELLED
            status = target
            seen_terminal = status in TERMINAL


def test_every_state_but_the_first_can_be_reached() -> None:
    reached = {RunStatus.QUEUED}
    while more := {target for target in RunStatus if sources(target) & reached} - reached:
        reached |= more
    assert reached == set(RunStatus)
