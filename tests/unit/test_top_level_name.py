"""Whatever names a module of the service names it in `learnloop_service`: app/, environment/, judges/ and training/ are
only its folders. Imported by a folder's name, a module would be loaded a second time, and a wheel does not have it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.engine_process import ROOT

FOLDERS = ("app", "environment", "judges", "training")
_ANY = "|".join(FOLDERS)
_IMPORTS = re.compile(
    rf"(?:^|[\"'`;>]|\\n)\s*(?:from (?:{_ANY})(?:\.\w+)* import |import (?:{_ANY})\b(?! *from))", re.M
)
_DOTTED = re.compile(rf"(?<![\w./-])(?:{_ANY})(?:\.[A-Za-z_]\w*)+(?![\w(])")  # what is called is no module
_READ = {".cfg", ".ini", ".js", ".mako", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}
_UNREAD = {"__pycache__", "build", "dist", "node_modules", "vendor"}
_HISTORY = {
    "CHANGELOG.md",
    "docs/decisions/0009-one-top-level-name.md",
    "training/engine/tiny_base/model/README.md",
}
"""What says how something was, at a release or a commit."""


def _names(text: str) -> Iterator[str]:
    """Imports by a folder's name, and dotted names of modules that exist."""
    yield from (match.group().strip() for match in _IMPORTS.finditer(text))
    for match in _DOTTED.finditer(text):
        folder, module = match.group().split(".")[:2]
        if (ROOT / folder / module).is_dir() or (ROOT / folder / f"{module}.py").is_file():
            yield match.group()


def _files() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name for name in folders
            if name not in _UNREAD and not name.endswith(".egg-info")
            and (not name.startswith(".") or name in (".ci", ".github"))
        ]  # fmt: skip
        for name in files:
            path = Path(folder, name)
            if path.suffix in _READ and path.relative_to(ROOT).as_posix() not in _HISTORY:
                yield path


def test_no_file_names_a_module_by_its_folder() -> None:
    names_by_file = {
        path.relative_to(ROOT).as_posix(): names
        for path in _files()
        if (names := list(_names(path.read_text(encoding="utf-8", errors="ignore"))))
    }
    assert names_by_file == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_way_to_name_one_is_found(folder: str) -> None:
    module = "registry" if folder in ("environment", "judges") else "cli" if folder == "app" else "engine"
    for line in (
        f"from {folder} import {module}",
        f"    import {folder}",
        f"from {folder}.{module} import build",
        f'python -m {folder}.{module}',
        f'command = "{folder}.{module}:main"',
        f'run("import sys; from {folder} import {module}")',
    ):  # fmt: skip
        assert list(_names(line)), line
    for line in (f"from learnloop_service.{folder} import {module}", f"{folder}/{module}.py", f"{folder}.config"):
        assert not list(_names(line)), line
