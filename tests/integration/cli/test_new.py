"""`learnloop new environment` and `backend`: what they write works as it stands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Learnloop


@pytest.mark.parametrize(("kind", "passed"), [("environment", 6), ("backend", 5)])
def test_the_package_has_tests_that_pass(learnloop: Learnloop, tmp_path: Path, kind: str, passed: int) -> None:
    ran = learnloop("new", kind, "my_job", "--path", str(tmp_path / "new"))
    assert ran.exit_code == 0, ran.stderr
    package = tmp_path / "new/my_job"
    written = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert written == {
        "pyproject.toml",
        "README.md",
        "my_job/__init__.py",
        f"my_job/{kind}.py",
        f"tests/test_{kind}.py",
    }
    assert not [path for path in package.rglob("*") if path.is_file() and "$" in path.read_text()]
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=package, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # importing the plugins takes seconds
    )  # fmt: skip
    assert tests.returncode == 0, tests.stdout
    assert f"{passed} passed" in tests.stdout


@pytest.mark.parametrize("name", ["My-Job", "1st", "class", "", "a" * 51, "../job"])
def test_a_name_that_is_none_is_refused(learnloop: Learnloop, tmp_path: Path, name: str) -> None:
    ran = learnloop("new", "environment", name, "--path", str(tmp_path))
    assert ran.exit_code == 1
    assert "cannot be a package" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "environment"])
def test_a_module_that_exists_is_not_hidden(learnloop: Learnloop, tmp_path: Path, name: str) -> None:
    ran = learnloop("new", "environment", name, "--path", str(tmp_path))
    assert (ran.exit_code, "is installed already" in ran.stderr) == (1, True)


def test_nothing_is_overwritten(learnloop: Learnloop, tmp_path: Path) -> None:
    (tmp_path / "my_job").mkdir()
    ran = learnloop("new", "environment", "my_job", "--path", str(tmp_path))
    assert (ran.exit_code, "exists already" in ran.stderr) == (1, True)
    assert list((tmp_path / "my_job").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(learnloop: Learnloop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = learnloop("new", "environment", "my_job", "--path", str(tmp_path / "file/below"))
    assert (ran.exit_code, "cannot write" in ran.stderr) == (1, True)
