"""Runs pytest the way `.ci/run` does: python -m scripts.ci_tests OPTIONS OF PYTEST

If exactly one test fails, it is run again twice, alone. If it passes both times, it is printed under the heading FLAKY
and the run is green. Everything else is red: a second failed test, a test listed in `tests/flaky.txt`, a process that
died, tests that could not be collected.

As a pytest plugin (`-p scripts.ci_tests --outcomes FILE`) it writes the result of each test, as JSON by node id.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import pytest

_FLAKY_LIST = Path("tests/flaky.txt")
_RERUNS = 2
_RERUN_TIMEOUT_S = 600.0


class Outcome(StrEnum):
    """The result of a test: the worst of its parts (setup, call, teardown)."""

    SKIPPED = "skipped"
    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    """The test's process died, or something other than a test failed."""


_BY_SEVERITY = list(Outcome)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="write what became of each test, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("outcomes")) is not None:
        config.pluginmanager.register(_Outcomes(file))


class _Outcomes:
    """The pytest plugin that records results."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._outcomes: dict[str, Outcome] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call":
            return
        outcome = Outcome.CRASHED if getattr(report, "crashed", False) else Outcome(report.outcome)
        before = self._outcomes.get(report.nodeid, outcome)
        self._outcomes[report.nodeid] = max(before, outcome, key=_BY_SEVERITY.index)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._outcomes))


def main(options: Sequence[str]) -> int:
    """Run the tests and return the exit status."""
    status, outcomes = _run(options)
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    failed = [test for test, outcome in outcomes.items() if outcome in (Outcome.FAILED, Outcome.CRASHED)]
    if (why := _why_red(failed, outcomes, _listed_as_flaky())) is not None:
        print(f"\nNo test is run again: {why}.")
        return status
    [test] = failed
    for number in range(1, _RERUNS + 1):
        print(f"\n{test} is run again, alone, {number} of {_RERUNS}:", flush=True)
        status, again = _run([*options, "--workers=1", test], _RERUN_TIMEOUT_S)
        if (status, again) != (pytest.ExitCode.OK, {test: Outcome.PASSED}):
            return status or pytest.ExitCode.TESTS_FAILED
    counts = Counter({**outcomes, **again}.values())
    print(f"\nFLAKY\n{test}\nFind the cause, or list the test in {_FLAKY_LIST}: then its next failure is red.\n")
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in reversed(_BY_SEVERITY) if counts[outcome]))
    return pytest.ExitCode.OK


def _run(options: Sequence[str], timeout_s: float | None = None) -> tuple[int, Mapping[str, Outcome]]:
    """Run pytest and return its exit status and the result of each test."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-p", "scripts.ci_tests", f"--outcomes={file}", *options]
        try:
            status = subprocess.run(command, check=False, timeout=timeout_s).returncode
        except subprocess.TimeoutExpired:
            print(f"\nIt did not end within {timeout_s:.0f} s.")
            return pytest.ExitCode.INTERRUPTED, {}
        # If pytest died, it wrote no file.
        outcomes = json.loads(file.read_text()) if file.exists() else {}
        return status, {test: Outcome(outcome) for test, outcome in outcomes.items()}


def _why_red(failed: Sequence[str], outcomes: Mapping[str, Outcome], known: set[str]) -> str | None:
    if len(failed) != 1:
        return f"{len(failed)} failed"
    [test] = failed
    if outcomes[test] is Outcome.CRASHED:
        return "a process died"
    if {test, test.partition("[")[0]} & known:
        return f"it is listed in {_FLAKY_LIST}"
    return None


def _listed_as_flaky() -> set[str]:
    """Return the tests listed as flaky: node ids, with or without their parameters."""
    if not _FLAKY_LIST.exists():
        return set()
    lines = _FLAKY_LIST.read_text().splitlines()
    return {line.partition(" | ")[0].strip() for line in lines if not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
