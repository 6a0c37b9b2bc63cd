"""A copy of the code: processes that run from it do not see what is changed meanwhile."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGES = ("alembic", "app", "benchmarks", "environment", "judges", "learnloop", "tests", "training")


def freeze(directory: Path) -> Path:
    """Copy the packages to `directory`/code, and return that. `python -m` takes them from there if it is the working
    directory. What was compiled goes along: the files keep their times, so it still fits."""
    code = directory / "code"
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, code / name)
    shutil.copy(ROOT / "pyproject.toml", code)
    return code
