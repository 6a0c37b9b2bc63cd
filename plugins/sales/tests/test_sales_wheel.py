"""The wheel of the plug-in has everything that it reads."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

PROJECT = Path(__file__).parents[1]
pytestmark = pytest.mark.long
UNSHIPPED = {"tsconfig.json"}
"""Files for `make check` only."""


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "tests")
    shutil.copytree(PROJECT, source, ignore=unwanted)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], check=True, cwd=source, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as opened:
        shipped = {name for name in opened.namelist() if ".dist-info/" not in name}
    files = {path.relative_to(PROJECT) for path in (PROJECT / "learnloop_sales").rglob("*") if path.is_file()}
    package_files = {
        path.as_posix() for path in files if "__pycache__" not in path.parts and path.name not in UNSHIPPED
    }
    assert shipped == package_files
