"""A snapshot of the code, so that processes running from it do not see later changes."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGES = ("alembic", "app", "benchmarks", "environment", "judges", "learnloop", "src", "tests", "training")


def freeze(directory: Path) -> Path:
    """Copy the packages to `directory`/code and return that path.

    `python -m` imports them from there if it is the working directory. Compiled files are copied with their sources and
    stay valid because modification times are preserved.
    """
    code = directory / "code"
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, code / name, symlinks=True)
    (code / "learnloop_service").symlink_to("src/learnloop_service")
    shutil.copy(ROOT / "pyproject.toml", code)
    return code
