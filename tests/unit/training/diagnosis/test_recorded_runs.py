"""The diagnoses of recorded healthy runs, and of the same runs with faults written into them.

The draws are seeded: `python -m benchmarks.learning.recorded_faults` makes more of them.
"""

import random
from collections.abc import Sequence

import pytest

from benchmarks.learning.healthy_runs import KINDS, Recorded, read
from benchmarks.learning.recorded_faults import FAULTS, LARGE, RECORDED, before, diagnoses, false_alarms, waits, within
from learnloop_service.training.diagnosis.diagnosis import Severity


@pytest.fixture(scope="module")
def runs() -> Sequence[Recorded]:
    return read(RECORDED)


def test_no_recorded_run_has_an_alarm(runs: Sequence[Recorded]) -> None:
    """Some have a note, so that they were examined."""
    assert {run.kind for run in runs} == set(KINDS)
    assert {diagnosis.severity for run in runs for diagnosis in diagnoses(run)} == {Severity.NOTE}


def test_resampled_runs_have_no_alarm(runs: Sequence[Recorded]) -> None:
    assert false_alarms(random.Random(1), runs, 50)["alarms"] == 0


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_the_first_cause_within_three_iterations(runs: Sequence[Recorded], name: str) -> None:
    """Two faults are exempt: the share of groups without success is close to its bound in runs that begin badly, and
    success that is rare at first cannot fall far."""
    waited = waits(random.Random(1), runs, LARGE, FAULTS[name], 20)
    assert before(waited) == 0
    assert within(waited, 3) >= 0.95 or not FAULTS[name].fast
