"""A failed test gets a second chance in CI only where nothing else is wrong. Each case is a real run of pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import ci_tests

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
_OPTIONS = ("-p", "tests.workers", "-c", "/dev/null", "--rootdir=.")

PASSES = """
def test_passes():
    pass
"""
FAILS_ONCE = """
from pathlib import Path

def fail_first(name, times):
    with Path(name).open("a+") as file:
        file.write("x")
        file.seek(0)
        assert len(file.read()) > times

def test_fails_once():
    fail_first("runs", 1)
"""
FAILS_TWICE = FAILS_ONCE + "\ndef test_fails_twice():\n    fail_first('more runs', 2)\n"
SKIPS_THEN = FAILS_ONCE.replace("def test_fails_once", "import pytest\n\ndef test_skips").replace(
    "    fail_first(", "    if Path('runs').exists():\n        pytest.skip()\n    fail_first("
)
HANGS_THEN = SKIPS_THEN.replace("pytest.skip()", "__import__('signal').pause()")
DIES = "import os\n\ndef test_dies():\n    os.kill(os.getpid(), 9)\n"
BREAKS_ITS_WORKER = """
import pytest

@pytest.fixture(scope="session")
def broken():
    yield
    raise ValueError

def test_uses_it(broken):
    pass
"""


def _ci(directory: Path, *files: str, listed: str = "") -> tuple[int, str]:
    """Run the script; returns its exit status and what it printed."""
    for number, text in enumerate(files):
        (directory / f"test_{number}.py").write_text(text)
    (directory / "tests").mkdir()
    (directory / "tests" / "flaky.txt").write_text(f"# listed tests\n{listed}")
    process = subprocess.run(
        [sys.executable, "-m", "scripts.ci_tests", "-q", *_OPTIONS, "--workers=2"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    return process.returncode, process.stdout


def _runs(directory: Path) -> int:
    return len((directory / "runs").read_text())


def test_nothing_is_run_again_where_all_tests_pass(tmp_path: Path) -> None:
    status, output = _ci(tmp_path, PASSES, PASSES)
    assert status == 0, output
    assert "2 passed in" in output, output
    assert "again" not in output, output


def test_a_test_that_passes_when_run_again_is_flaky_and_the_run_is_green(tmp_path: Path) -> None:
    status, output = _ci(tmp_path, FAILS_ONCE, PASSES)
    assert status == 0, output
    assert "1 failed, 1 passed in" in output
    assert "FLAKY\ntest_0.py::test_fails_once\n" in output
    assert output.endswith("\n2 passed\n")
    assert _runs(tmp_path) == 3


RED = {
    "a test that fails again": (FAILS_TWICE.replace("def test_fails_once", "def once"), 1, "FLAKY"),
    "a test that is skipped when it is run again": (SKIPS_THEN, 1, "FLAKY"),
    "a process that died": (DIES, 3, "again"),
    "a worker that broke": (BREAKS_ITS_WORKER, 3, "again"),
    "tests that cannot be collected": ("import nothing_of_this_name", 2, "again"),
    "a run that dies": ("import os\n\nos.kill(os.getpid(), 9)\n", -9 % 256, "again"),
}


@pytest.mark.parametrize(("failing", "expected", "unsaid"), RED.values(), ids=RED)
def test_what_is_red(tmp_path: Path, failing: str, expected: int, unsaid: str) -> None:
    status, output = _ci(tmp_path, failing, PASSES)
    assert status == expected, output
    assert unsaid not in output, output


def test_a_test_that_does_not_end_when_it_is_run_again_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_0.py").write_text(HANGS_THEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(ci_tests, "_RERUN_TIMEOUT_S", 3.0)
    assert ci_tests.main(["-q", *_OPTIONS]) == pytest.ExitCode.INTERRUPTED
    assert "It did not end within 3 s." in capfd.readouterr().out


def test_two_tests_that_fail_are_red(tmp_path: Path) -> None:
    status, output = _ci(tmp_path, FAILS_TWICE, PASSES)
    assert status == 1, output
    assert "No test is run again: 2 failed." in output


@pytest.mark.parametrize("listed", ["test_0.py::test_fails_once[1]", "test_0.py::test_fails_once"])
def test_a_listed_test_gets_no_second_chance(tmp_path: Path, listed: str) -> None:
    parametrized = FAILS_ONCE.replace(
        "def test_fails_once()", "@pytest.mark.parametrize('n', [1])\ndef test_fails_once(n)"
    )
    status, output = _ci(tmp_path, f"import pytest\n{parametrized}", PASSES, listed=f"{listed} | 2026-11-24 | a race\n")
    assert status == 1, output
    assert "it is listed in tests/flaky.txt" in output, output
    assert _runs(tmp_path) == 1


def test_every_listed_test_has_a_date_and_a_suspected_cause() -> None:
    lines = (ROOT / "tests" / "flaky.txt").read_text().splitlines()
    for line in lines:
        assert line.startswith("#") or len(line.split(" | ")) == 3, line
