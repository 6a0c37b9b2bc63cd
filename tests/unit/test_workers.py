"""The processes that run the tests: nothing that happens in one is lost."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.workers import files_of

ROOT = Path(__file__).parents[2]

TESTS = """
import os
import signal
import warnings


def test_passes():
    warnings.warn("this is a warning")


def test_fails():
    print("this was printed")
    assert False, "this failed"


def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)


def test_comes_behind():
    pass
"""

A_FIXTURE = """
import pytest


@pytest.fixture(scope="session")
def breaks_at_the_end():
    yield
    raise ValueError("this fixture broke")


def test_uses_it(breaks_at_the_end):
    pass
"""


def test_whatever_becomes_of_a_test_is_reported(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    # The last one: who runs it will not die with another.
    (tmp_path / "test_with_a_fixture.py").write_text(A_FIXTURE)
    options: list[str] = ["-p", "tests.workers", "--workers", "2", "--rootdir", ".", "--basetemp", "temporary"]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-c", "/dev/null", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    output = process.stdout
    assert process.returncode == 3, output  # processes died
    assert "5 failed, 5 passed, 2 warnings" in output
    for name in ("one", "two"):
        assert f"PASSED test_{name}.py::test_passes" in output
        assert f"FAILED test_{name}.py::test_fails - AssertionError: this failed" in output
        assert f"FAILED test_{name}.py::test_dies - the process of this test ended with status -9" in output
        assert f"PASSED test_{name}.py::test_comes_behind" in output
    assert output.count("UserWarning: this is a warning") == 2
    assert output.count("\nthis was printed") == 2
    assert "ValueError('this fixture broke')" in output


def test_files_with_long_tests_come_first() -> None:
    def item(path: str, **marks: str) -> Any:
        markers = {name: SimpleNamespace(args=[value]) for name, value in marks.items()}
        return SimpleNamespace(path=Path(path), get_closest_marker=markers.get)

    items = [item("one"), item("two"), item("two", long=""), item("three", together="x"), item("four", together="x")]
    assert list(map(list, files_of(items))) == [[1, 2], [0], [3, 4]]
