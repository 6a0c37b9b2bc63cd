"""Runs pytest the way `.ci/run` does: python -m scripts.ci_tests OPTIONS OF PYTEST

If exactly one test fails, it is run again twice, alone. If it passes both times, it is printed under the heading FLAKY
and the run is green. Everything else is red: a second failed test, a test listed in `tests/flaky.txt`, a process that
died, tests that could not be collected.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

_FLAKY_LIST = Path("tests/flaky.txt")
_RERUNS = 2
_RERUN_TIMEOUT_S = 600.0


def main(options: Sequence[str]) -> int:
    """Run the tests and return the exit status."""
    status, failed, counts = _run(options)
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    if len(failed) != 1 or {failed[0], failed[0].partition("[")[0]} & _listed_as_flaky():
        why = f"it is listed in {_FLAKY_LIST}" if len(failed) == 1 else f"{len(failed)} failed"
        print(f"\nNo test is run again: {why}.")
        return status
    [test] = failed
    for number in range(1, _RERUNS + 1):
        print(f"\n{test} is run again, alone, {number} of {_RERUNS}:", flush=True)
        status, _, again = _run([*options, "--workers=1", test], _RERUN_TIMEOUT_S)
        if (status, again) != (pytest.ExitCode.OK, Counter(passed=1)):
            return status or pytest.ExitCode.TESTS_FAILED
    print(f"\nFLAKY\n{test}\nFind the cause, or list the test in {_FLAKY_LIST}: then its next failure is red.\n")
    counts += Counter(passed=1)
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "skipped") if counts[outcome]))
    return pytest.ExitCode.OK


def _run(options: Sequence[str], timeout_s: float | None = None) -> tuple[int, list[str], Counter[str]]:
    """Run pytest and return its exit status, the tests in its cache of failures, and how many had which outcome."""
    with tempfile.TemporaryDirectory() as directory:
        cache, report = Path(directory) / "cache", Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", f"--junitxml={report}", *options]
        try:
            status = subprocess.run(command, check=False, timeout=timeout_s).returncode
        except subprocess.TimeoutExpired:
            print(f"\nIt did not end within {timeout_s:.0f} s.")
            return pytest.ExitCode.INTERRUPTED, [], Counter()
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return status, [], Counter()
        last_failed = cache / "v" / "cache" / "lastfailed"
        failed = list(json.loads(last_failed.read_text())) if last_failed.exists() else []
        tests = ElementTree.parse(report).iter("testcase")
        return status, failed, Counter(test[0].tag if len(test) else "passed" for test in tests)


def _listed_as_flaky() -> set[str]:
    """Return the tests listed as flaky: node ids, with or without their parameters."""
    if not _FLAKY_LIST.exists():
        return set()
    lines = _FLAKY_LIST.read_text().splitlines()
    return {line.partition(" | ")[0].strip() for line in lines if not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
